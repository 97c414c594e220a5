"""bidwise as other libraries expect models to be: scikit-learn. Each module imports the library it is for."""
