"""Roles that a worker process builds in tests."""

from __future__ import annotations

import os
import signal

from omni_portable.contracts.errors import RewardError
from omni_portable.contracts.reward import ComposedReward
from tests.rollout.router_fakes import Replica


def build_replica(config, opened=False):
    """A replica that draws at once where it is `opened`; else what it draws never comes back."""
    print("a line of output", flush=True)
    replica = Replica("there")
    if opened:
        replica.open.set()
    return replica


class Counting:
    """Scores with the length of the prompt; dies, or fails, where a prompt says so and a file is not there yet."""

    def __init__(self, mark):
        self.mark = mark

    async def score_async(self, samples):
        for sample in samples:
            if sample.prompt == "fail":
                raise RewardError("the scorer 'words' failed", remedy="mend it", choices=("a", "b"))
            if sample.prompt == "bug":
                raise ZeroDivisionError("in the scorer")
            if sample.prompt == "die" and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        total = [float(len(sample.prompt)) for sample in samples]
        return ComposedReward(total, {"words/score": total}, [{} for _ in samples], [], {"words": 0.1})


def build_counting(config, mark=""):
    return Counting(mark)
