"""Data planes: where finished groups wait between rollout and training."""
