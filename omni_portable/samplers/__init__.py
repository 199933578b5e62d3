"""The one denoising step: schedules, step kernels with log-probs, noise, and windows of stochastic steps."""
