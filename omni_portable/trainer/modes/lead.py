"""How far rollout may run ahead of training. Pure arithmetic on rounds and policy versions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lead:
    """Bounds the staleness that a round will have when it is trained on.

    Args:
        max_staleness: largest difference of policy versions (`dataplane.max_staleness`).
        sync_interval: optimizer steps between publications of the weights (`trainer.sync_interval`).
        steps_per_round: optimizer steps that one round takes.
    """

    max_staleness: int
    sync_interval: int
    steps_per_round: int

    def publications(self, rounds: int, pending: int = 0) -> int:
        """Versions published by training on `rounds` further rounds, `pending` optimizer steps after the last one.

        A publication happens only between rounds, at the first end of a round at which `sync_interval` steps or more
        are pending; the count then starts again at 0.
        """
        if self.sync_interval <= self.steps_per_round:
            return rounds
        per_version = -(-self.sync_interval // self.steps_per_round)
        done = pending // self.steps_per_round
        return (done + rounds) // per_version

    def allows(self, ahead: int, pending: int = 0) -> bool:
        """May a round be drawn now that is trained on after `ahead` others (0: it is the next)?"""
        return self.publications(ahead, pending) <= self.max_staleness
