"""bidwise inside other people's tools: scikit-learn, gradient boosting, Lightning, ONNX. Each imports its own."""
