"""Errors that end the search: what was asked, what is missing, how to get it, what else may be chosen.

Every error a user can cause or cure derives from :class:`OmniPortableError`; the command line prints its message
without a traceback and exits with :attr:`OmniPortableError.exit_code`. Anything else that escapes is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence


class OmniPortableError(Exception):
    """Base of all errors a user may meet.

    Args:
        problem: what was asked and what is wrong with it, one sentence that names the key or the object and its value.
        remedy: what to do about it (an install command, the key to change).
        choices: what may be chosen explicitly instead.
    """

    exit_code: int = 1
    stopped_run: bool = False
    """Whether it ended a run that was training, which can be continued."""

    def __init__(self, problem: str, *, remedy: str = "", choices: Sequence[str] = ()) -> None:
        self.problem = problem
        self.remedy = remedy
        self.choices = tuple(str(choice) for choice in choices)
        lines = [problem]
        if remedy:
            lines.append(f"  to fix it: {remedy}")
        if self.choices:
            lines.append(f"  valid choices: {', '.join(self.choices)}")
        super().__init__("\n".join(lines))


class ConfigError(OmniPortableError):
    """A configuration key, value or combination that cannot work; found before any model loads."""

    exit_code = 2


class CapabilityError(ConfigError):
    """Parts that do not fit together (algorithm x model x engine x device), found when they are paired."""


class PluginError(OmniPortableError):
    """A plugin name that nobody registered, or one that cannot be imported."""

    exit_code = 2


class DeviceError(OmniPortableError):
    """A device or generation that is unknown, absent or ambiguous."""


class AttentionUnavailable(OmniPortableError):  # noqa: N818 - the name is the design's
    """The attention kernel asked for cannot serve the request on this device."""


class AttentionMismatch(OmniPortableError):  # noqa: N818 - the name is the design's
    """The attention kernel's results differ from fp32 math attention by more than its tolerance."""


class ModelError(OmniPortableError):
    """A model folder that is missing, incomplete, corrupt or of the wrong family."""


class DataError(OmniPortableError):
    """A dataset that is missing, empty, or holds a row which breaks its schema."""


class ArtifactError(OmniPortableError):
    """A media artifact that is missing, unlabelled, or not of the declared modality or layout."""


class RewardError(OmniPortableError):
    """A scorer that failed, timed out, or returned something that is not one finite score per sample."""


class TeacherError(OmniPortableError):
    """A teacher that failed, timed out, or gave an output that does not fit its trajectory."""


class NonFiniteError(OmniPortableError):
    """A reward, loss or gradient that is NaN or infinite; names the samples it came from."""


class LifecycleError(OmniPortableError):
    """An engine operation that its present state does not allow."""


class EngineEndedError(LifecycleError):
    """A process of the rollout engine's own has ended unasked, while the role's process lives. Where replicas may be
    replaced, the replica counts as lost; elsewhere the engine is started again before it is used again."""


class WeightSyncError(OmniPortableError):
    """A weight update that did not provably arrive; the engine stays paused at its old version."""


class EngineEndedInUpdateError(EngineEndedError, WeightSyncError):
    """A process of the rollout engine's own has ended during a weight update, which may be sent again."""


class ConsistencyError(OmniPortableError):
    """Actor and rollout disagree by more than the recipe allows."""


class ClusterError(OmniPortableError):
    """A cluster that cannot be reached, has no room for what the run asks for, or does not answer."""


class WorkerLostError(OmniPortableError):
    """A role's process that is gone: killed, out of memory, or its machine lost. What it was doing is lost with it."""


class CheckpointError(OmniPortableError):
    """A checkpoint that is missing, incomplete, corrupt, or of another run."""


class RunDirectoryError(OmniPortableError):
    """A run directory that is in use, cannot be written, or has no room left."""
