"""Prompts in, media out: datasets with checked rows, the order they are used in, and images on disk."""
