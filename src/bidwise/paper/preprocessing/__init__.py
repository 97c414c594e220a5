"""Criteo's raw text into a training store."""
