"""Where a run's metrics go; each logger is a plugin (`contracts.logger`). Specs load without torch."""
