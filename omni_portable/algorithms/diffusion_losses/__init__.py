"""Losses of diffusion algorithms as pure functions on rows; one module per family."""
