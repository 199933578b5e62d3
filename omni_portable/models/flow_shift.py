"""One clock for two streams whose schedules have different shifts.

A rectified flow x = (1 - s_a) x0 + s_a e whose sigmas are shifted by a, s_a = a b / (1 + (a - 1) b) for evenly spaced
b, runs beside one that is shifted by v and has the level s. With k = v / a both levels belong together as

    s_a = s / (k - (k - 1) s).

Multiplied by k - (k - 1) s the stream is itself a rectified flow at level s, from unit noise to k times the clean
sample:

    (k - (k - 1) s) x = (1 - s) k x0 + s e.

So latents that are kept in this scale share sigmas, steps, unit noise and log-probs with the other stream, each Euler
step is exactly the one of its own schedule, and samples noised for training have its own noise level.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_portable.samplers.reduce import expand_rows


@dataclass(frozen=True)
class ShiftedStream:
    """A stream that runs on the clock of another.

    Args:
        ratio: k, shift of the clock's stream over that of this one; clean latents are kept k times as large.
    """

    ratio: float

    def level(self, sigma: torch.Tensor) -> torch.Tensor:
        """(B,) noise level of this stream where the clock shows `sigma`."""
        return sigma / self._scale(sigma)

    def to_model(self, latents: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """(B, ...) latents as kept -> as the model knows them at :meth:`level`."""
        return latents / expand_rows(self._scale(sigma), latents)

    def velocity(self, seen: torch.Tensor, predicted: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """d latents / d sigma of the latents as kept, from the model's d x / d level.

        Args:
            seen: (B, ...) what the model was given (:meth:`to_model`).
            predicted: (B, ...) its velocity, x0 = x - level * predicted.
        """
        share = expand_rows(self.ratio / self._scale(sigma), predicted)
        return share * predicted - (self.ratio - 1.0) * seen

    def _scale(self, sigma: torch.Tensor) -> torch.Tensor:
        return self.ratio - (self.ratio - 1.0) * sigma
