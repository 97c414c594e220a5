"""Pages about Criteo runs."""
