"""The model: what a step costs under a placement. Equations and their limits: docs/placement.md."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.planning.placement.profile import Placement, Profile


@dataclass(frozen=True)
class Costs:
    """What the fit finds; seconds.

    Args:
        rollout_fixed / rollout_token: device-seconds of drawing one prompt's group on replicas of one device: fixed,
            and per (weighted) response token of a sample.
        train_fixed / train_token: the same of training on it.
        reward: seconds of scoring one prompt's group, with the scorers as they are.
        sync: of one publication of the weights.
        switch: of putting rollout to sleep and waking it, per step.
    """

    rollout_fixed: float
    rollout_token: float
    train_fixed: float
    train_token: float
    reward: float = 0.0
    sync: float = 0.0
    switch: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """One placement at one length, in seconds of a step unless said otherwise.

    Args:
        bound: what holds the step up: 'rollout', 'reward', 'training', or 'all in turn'.
        lost_s: rollout that is thrown away by interruptions.
    """

    placement: Placement
    tokens: float
    step_s: float
    seconds_per_prompt: float
    rollout_s: float
    reward_s: float
    train_s: float
    sync_s: float
    switch_s: float
    lost_s: float
    bound: str

    @property
    def rollout_busy(self) -> float:
        """Share of the step in which rollout devices draw."""
        return self.rollout_s / self.step_s

    @property
    def train_busy(self) -> float:
        """Share of the step in which the trainer's devices train."""
        return self.train_s / self.step_s


def predict(costs: Costs, profile: Profile, placement: Placement, tokens: float, pieces: int = 8) -> Prediction:
    """A step of this placement.

    Args:
        profile: efficiencies and the weight of tokens (its rows are not read).
        pieces: calls to a replica that make its share of a step; half a call is lost per interruption.
    """
    prompts, weight = placement.prompts, profile.weight(tokens)
    per_prompt = costs.rollout_fixed + costs.rollout_token * weight
    rollout = (
        prompts * per_prompt / (placement.rollout_devices * profile.efficiency(placement.tensor_parallel))
        if per_prompt
        else 0.0
    )
    train = prompts * (costs.train_fixed + costs.train_token * weight) / placement.train_devices
    reward = prompts * costs.reward
    sync = costs.sync / placement.sync_rounds
    switch = costs.switch if placement.mode == "sync" else 0.0
    lost = 0.0
    if placement.mode == "sync":
        step, bound = rollout + reward + train + sync + switch, "all in turn"
    elif placement.max_staleness == 0:
        step, bound = max(rollout, reward) + train + sync, "all in turn"
    else:
        if placement.mode == "fully_async" and profile.interrupted == "restart" and rollout > train:
            lost = rollout / pieces / 2 / placement.sync_rounds
        sides = {"training": train, "rollout": rollout + lost, "reward": reward}
        bound = max(sides, key=lambda side: sides[side])
        step = sides[bound] + sync
    return Prediction(
        placement, tokens, step, step / prompts, rollout, reward, train, sync, switch, lost, bound
    )  # fmt: skip
