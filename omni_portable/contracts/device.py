"""The device seam: everything the rest of the house may ask of an accelerator, and nothing else.

A device package implements :class:`Device` and registers it under ``omni_portable.devices``. A device's spec
(`PluginSpec.capabilities`) carries 'generations' (tuple of names, may be empty), 'accelerator' (False for the host
processor), 'ray_resource' (what Ray calls it, where Ray counts such devices) and, where installations can be broken in
ways of their own, 'stack_check': 'module:function' of a function (generation, '' for unknown) -> :class:`StackState`
that imports no torch. Device modules load without torch, so that `static_profile` answers on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from omni_portable.contracts.lifecycle import Ack

if TYPE_CHECKING:
    import torch

Component = Literal["transformer", "text_encoder", "vae", "language_model"]
MaskKind = Literal["none", "padding", "dense"]
SleepTag = Literal["weights", "optimizer", "kv_cache", "activations"]


@dataclass(frozen=True)
class AttentionRequest:
    """What a component needs of an attention kernel; dtype by name ('float32', 'bfloat16', ...)."""

    component: Component
    dtype: str = "float32"
    head_dim: int | None = None
    mask: MaskKind = "none"
    causal: bool = False
    grouped_query: bool = False
    variable_length: bool = False
    backward: bool = False
    deterministic: bool = False


@dataclass(frozen=True)
class AttentionChoice:
    """One kernel family in both spellings, so that actor and rollout run the same arithmetic.

    Args:
        component: what it was chosen for.
        family: 'sdpa', 'math', 'flash_attention_2', ...
        actor: name in the actor's library (diffusers attention backend or transformers attn_implementation).
        actor_library: which registry `actor` belongs to.
        rollout: name in the rollout engine's registry (vLLM / vLLM-Omni).
        package: installed package and version that provides the kernel ('torch 2.13.0').
        reason: why this one (asked for, or the device's documented default).
    """

    component: Component
    family: str
    actor: str
    actor_library: Literal["diffusers", "transformers"]
    rollout: str
    package: str
    reason: str = ""


@dataclass(frozen=True)
class DeviceIdentity:
    """What the device is, as read from its driver; `generation` as in its tables ('sm90', 'a3', '' for CPU)."""

    name: str
    generation: str
    model: str
    count: int
    memory_bytes: int
    driver: str
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceCapabilities:
    """Facts that decide what may run; code asks for these, never for a device's name.

    Args:
        dtypes: dtype names with usable arithmetic, best first.
        default_dtype: what 'auto' means here, and `default_dtype_reason` why.
        weight_channels: ways to hand weights to another process ('shared_memory', 'ipc', 'broadcast').
        features: named booleans ('fp8', 'graphs', 'pinned_memory', ...).
    """

    dtypes: tuple[str, ...]
    default_dtype: str
    default_dtype_reason: str
    weight_channels: tuple[str, ...]
    features: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryStats:
    """Bytes as the driver (or the operating system) reports them: `used` is what this process holds."""

    total: int
    free: int
    used: int
    peak: int


@dataclass(frozen=True)
class VerifyResult:
    """Largest absolute error of a kernel against fp32 math attention, forward and backward, and the tolerance."""

    choice: AttentionChoice
    max_forward_error: float
    max_backward_error: float | None
    tolerance: float
    seconds: float


class AttentionSelector(Protocol):
    """Chooses and proves attention kernels; never falls back."""

    def select(self, request: AttentionRequest, choice: str = "auto") -> AttentionChoice:
        """The pair for `request`; 'auto' is the device's documented default for the component.

        Raises:
            AttentionUnavailable: says what was asked, what is missing, how to install it, what else may be chosen.
        """
        ...

    def verify(
        self, choice: AttentionChoice, request: AttentionRequest, shapes: Sequence[tuple[int, int, int, int]]
    ) -> VerifyResult:
        """Compare the kernel with fp32 math attention on (batch, heads, tokens, head_dim) shapes.

        Raises:
            AttentionMismatch: an error above the dtype's tolerance.
        """
        ...


@runtime_checkable
class SleepPool(Protocol):
    """A set of modules and optimizers that sleep and wake together; parameters keep their identity."""

    def register(self, tag: SleepTag, owner: torch.nn.Module | torch.optim.Optimizer) -> None: ...

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Release storages: level 1 keeps a copy off the device (exact restore), level 2 discards the contents.

        The Ack's bytes are measured; freeing much less than the slept bytes raises `LifecycleError`.
        """
        ...

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack: ...


class EnginePool(Protocol):
    """A rollout engine's own allocator, in the engine's process: tagged memory that sleeps and wakes in place."""

    def check(self) -> None:
        """Refuse, before anything is allocated, settings under which sleeping cannot work.

        Raises:
            LifecycleError: names the setting and what to change it to.
        """
        ...

    def use(self, tag: SleepTag) -> AbstractContextManager[None]:
        """What is allocated inside belongs to `tag`."""
        ...

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Unmap memory: level 1 keeps a host copy of 'weights' and discards the rest, level 2 discards everything.

        Raises:
            LifecycleError: the driver reports that much less was freed than was asleep.
        """
        ...

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack: ...


class MemoryManager(Protocol):
    def stats(self) -> MemoryStats: ...

    def trim(self) -> int:
        """Give cached free memory back to the driver or system; returns bytes given back, as measured."""
        ...

    def pool(self, name: str) -> SleepPool:
        """A new, empty pool for an actor's modules and optimizers; `name` is for messages."""
        ...

    def engine_pool(self) -> EnginePool:
        """The allocator of the rollout engine in this process.

        Raises:
            DeviceError: the device has none, or the package that brings it is missing.
        """
        ...


class Collectives(Protocol):
    """Process groups of the device."""

    backend: str
    interface_variable: str
    """Variable that names the network interface between machines, '' where the backend finds it by itself."""

    def init_process_group(self, rank: int, world_size: int, init_method: str, timeout_s: float = 600.0) -> None: ...

    def self_test(self, timeout_s: float = 60.0) -> dict[str, float]:
        """Run each collective once on known inputs; seconds per collective; `DeviceError` if one is wrong."""
        ...

    def weight_channels(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class DeterminismReport:
    """What was set (name -> value), and what cannot be promised (one sentence each)."""

    applied: Mapping[str, str]
    not_promised: tuple[str, ...]


class Determinism(Protocol):
    def enable(self, seed: int) -> DeterminismReport: ...


@dataclass(frozen=True)
class PackageNeed:
    """An installed distribution that a device's stack, or one of its kernels, needs.

    Args:
        distribution: name on the package index, as `importlib.metadata` knows it.
        specifier: PEP 440 version specifier ('==2.10.0', '>=2.6.3,<3'); empty where any version will do.
        purpose: what needs it, a few words.
        install: the exact command that installs it.
        optional: only some choices need it; a wrong version is a fault, its absence is none.
        serves: where it plugs into another distribution, the newest known release of that, 'NAME==VERSION'.
    """

    distribution: str
    specifier: str
    purpose: str
    install: str
    optional: bool = False
    serves: str = ""


@dataclass(frozen=True)
class StackProblem:
    """A state of what is installed in which a device cannot work, found from metadata and files before any import.

    Args:
        distribution: what to change.
        problem: one sentence.
        remedy: the exact command.
        breaks_torch: in this state plain `import torch` fails, whatever device is used.
    """

    distribution: str
    problem: str
    remedy: str
    breaks_torch: bool = False


@dataclass(frozen=True)
class StackState:
    """Whether a device is here, as far as files and metadata tell, what was found, and what keeps it from working."""

    present: bool
    found: str
    problems: tuple[StackProblem, ...] = ()


@dataclass(frozen=True)
class StaticProfile:
    """Answers from tables, without hardware and without looking at what is installed: all that planning needs.

    Args:
        generation: '' where the device has none, or where facts hold for every generation.
        torch_device_type: as in `Device`.
        attention: a selector that answers from tables; `AttentionChoice.package` then says what must be installed.
        attention_families: families offered on this generation.
        default_attention: component -> family that 'auto' means.
        memory_bytes: of one device; None where only the machine itself can tell.
        reserved_bytes: of `memory_bytes` what driver context, runtime and communicators take.
        environment: variables of every role.
        packages: the pinned stack.
        constraints: path in the source tree of the pip constraints.
        image: Dockerfile and build arguments that make this device's image.
        evidence: where the report of a run on such hardware is, or 'not run on hardware'.
    """

    name: str
    generation: str
    capabilities: DeviceCapabilities
    attention_families: tuple[str, ...]
    default_attention: Mapping[str, str]
    memory_bytes: int | None
    collective_backend: str
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    torch_device_type: str = ""
    attention: AttentionSelector | None = None
    reserved_bytes: int = 0
    packages: tuple[PackageNeed, ...] = ()
    constraints: str = ""
    image: str = ""
    evidence: str = "not run on hardware"


@runtime_checkable
class Device(Protocol):
    """One kind of accelerator. Instances are cheap; nothing touches a driver before a method needs it."""

    name: str
    generation: str
    torch_device_type: str
    attention: AttentionSelector
    collectives: Collectives
    memory: MemoryManager
    determinism: Determinism

    def torch_device(self, index: int = 0) -> torch.device: ...

    def identity(self) -> DeviceIdentity: ...

    def capabilities(self) -> DeviceCapabilities: ...

    def environment(self, role: str) -> dict[str, str]:
        """Variables a process of `role` ('actor', 'rollout', 'reward', ...) needs, as data; nothing is set here."""
        ...

    def synchronize(self) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def rng_state(self) -> Any: ...

    def set_rng_state(self, state: Any) -> None: ...

    @staticmethod
    def available() -> tuple[bool, str]:
        """(present, what was looked for and found), without initialising a context."""
        ...

    @staticmethod
    def static_profile(generation: str = "") -> StaticProfile: ...
