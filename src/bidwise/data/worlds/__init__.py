"""Simulated markets with known CTR: the paper's, ours, and Criteo's shape."""
