"""Scorers and how they are combined: one finite score per sample, or a named failure; never a silent zero."""
