"""Losses of autoregressive algorithms as pure functions on (batch, token) tensors; one module per family."""
