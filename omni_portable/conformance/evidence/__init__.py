"""What checks that compare two sides share: an actor beside a rollout engine, recordings, replays, learning curves."""
