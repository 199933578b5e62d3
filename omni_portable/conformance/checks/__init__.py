"""The checks, a module per group; each exports `CHECKS`."""
