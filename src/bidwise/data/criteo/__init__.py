"""Criteo: raw text of its shape with known CTR (world, columns, raw), and its preparation into a store (prepare)."""
