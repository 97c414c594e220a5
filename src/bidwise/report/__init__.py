"""Pages to look at, each one file that needs nothing else: figures and words made from what a run has written."""
