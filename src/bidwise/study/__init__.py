"""The one scientific act: train candidates on the same ads, select on validation, compare with a baseline on test."""
