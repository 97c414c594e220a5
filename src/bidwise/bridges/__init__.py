"""Bridges to other libraries: what they train or measure with, in their own shapes."""
