"""The paper's experiments, and the questions it did not ask."""
