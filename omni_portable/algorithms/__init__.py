"""Algorithms: what to sample, how to weigh it, what to minimise. Pure functions, and one small class per algorithm."""
