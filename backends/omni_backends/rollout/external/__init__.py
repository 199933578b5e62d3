"""What rollout engines in other processes share."""
