"""Parts that rollout engines are built from, and the replay buffer between rollout and training."""
