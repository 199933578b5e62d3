"""DMD2 (arXiv 2405.14867): a student of few steps whose samples get the distribution of a teacher of many.

Three networks: the student G (the trained policy), the teacher (`model.teachers`, frozen, with guidance
`teacher_guidance_scale`), and the fake network f, a second trained copy that starts from the student's first weights.

A rollout takes the student's few steps: x0 = x - sigma G(x, sigma), then x' = (1 - sigma') x0 + sigma' e with fresh
noise e for the next step (`renoise`), or the same noise again. One step of each sample is trained, drawn at random: the
student sees in training what it sees in sampling ("backward simulation"). Its x0 there is mixed with noise at a random
level s, x_s = (1 - s) x0 + s e, where teacher and fake network say what they take for the clean sample, x_s - s v:

    L = 1/2 mean((x0 - stop(x0 - g))^2),    g = (x_fake - x_teacher) / max(mean|x0 - x_teacher|, normaliser_min)

so that the student descends along g, the gradient of KL(student | teacher) over all levels of noise. Before each step
of the student the fake network takes `fake_updates_per_step` steps (two time scales) of flow matching,
mean((v - (e - x0))^2), over the student's samples with other noise; if it did not keep up, it would judge samples that
the student no longer makes.

Left out of the publication: the adversarial term, a discriminator on the fake network's inner features, which
no model family shows. No pictures are needed, prompts alone. Rewards are only logged.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from omni_portable.algorithms.options import require, require_denominator, require_shift
from omni_portable.config.rules import GUIDANCE, RANGES
from omni_portable.contracts.algorithm import FakeScore, Requires
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DMD2Options:
    """Keys of `algorithm` for 'dmd2'. Rewards are only logged."""

    teacher_guidance_scale: float = 1.0
    """Classifier-free guidance of the teacher, which the student learns to do without; 8 in the published SDXL run."""
    fake_updates_per_step: int = 5
    """Optimizer steps of the fake network before each one of the student."""
    fake_lr: float = 0.0
    """Learning rate of the fake network; 0 takes actor.lr."""
    steps_per_sample: int = 1
    """Denoising steps of each sample that are trained, drawn at random; rollout.num_steps trains all."""
    sigmas: list[float] = field(default_factory=list)
    """Noise levels of the student's steps, rollout.num_steps of them falling from 1 to above 0, such as
    [1, 0.75, 0.5, 0.25]; empty: the family's schedule, whose last step may be next to nothing where steps are few."""
    renoise: bool = True
    """Fresh noise between the student's steps, as published; false keeps the noise, which is Euler sampling."""
    sigma_min: float = 0.02
    """Least noise level at which samples are judged, before `sigma_shift`."""
    sigma_max: float = 0.98
    """Largest noise level at which samples are judged, before `sigma_shift`."""
    sigma_shift: float = 1.0
    """Noise levels s, uniform in between, become shift s / (1 + (shift - 1) s); 3 is usual for SD3."""
    normaliser_min: float = 1e-5
    """Least denominator of the gradient."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to learn (`ConfigError`)."""
        guidance, updates, steps = self.teacher_guidance_scale, self.fake_updates_per_step, self.steps_per_sample
        require(guidance >= 1.0, "teacher_guidance_scale", guidance, "at least 1 (off)", GUIDANCE.high)
        stands = "at least 1: a fake network that stands still misleads"
        require(updates >= 1, "fake_updates_per_step", updates, stands, most=1000)
        lr, most = self.fake_lr, RANGES["actor.lr"].high
        require(lr >= 0.0, "fake_lr", lr, "0 (that of the actor) or positive", most)
        require(steps >= 1, "steps_per_sample", steps, "at least 1")
        require(0.0 < self.sigma_min < 1.0, "sigma_min", self.sigma_min, "above 0 and below 1")
        falls = all(high > low for high, low in itertools.pairwise([*self.sigmas, 0.0]))
        if self.sigmas and not (self.sigmas[0] <= 1.0 and falls):
            raise ConfigError(f"sigmas={self.sigmas} do not fall from at most 1 to above 0")
        require(self.sigma_min < self.sigma_max <= 1.0, "sigma_max", self.sigma_max, "above sigma_min, at most 1")
        require_shift("sigma_shift", self.sigma_shift)
        require_denominator("normaliser_min", self.normaliser_min)

    def requires(self) -> Requires:
        """A teacher, and the fake network."""
        return Requires(teacher=True, fake_score=FakeScore(self.fake_updates_per_step, self.fake_lr))

    def check(self, num_steps: int) -> None:
        """Refuse more trained steps than a sample has, or another number of `sigmas` (`ConfigError`)."""
        if self.sigmas and len(self.sigmas) != num_steps:
            raise ConfigError(
                f"sigmas={self.sigmas} are the noise levels of {len(self.sigmas)} steps, not of {num_steps}",
                remedy=f"set rollout.num_steps={len(self.sigmas)}, and leave validation.num_steps out",
            )
        if self.steps_per_sample > num_steps:
            raise ConfigError(
                f"steps_per_sample={self.steps_per_sample} of a rollout of {num_steps}",
                remedy=f"set algorithm.steps_per_sample to at most {num_steps}",
            )

    def check_validation(self, num_steps: int) -> None:
        """The student samples in validation as it was trained to (`ConfigError` as of :meth:`check`)."""
        self.check(num_steps)


SPEC = PluginSpec(
    name="dmd2",
    summary="DMD2: distils a teacher into a student of few steps by matching distributions, with a fake score network",
    target="omni_portable.algorithms.dmd2.algorithm:DMD2",
    options=DMD2Options,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": False,
        "needs_teacher": True,
        "needs_rollout": True,
        "min_group_size": 1,
    },
)
