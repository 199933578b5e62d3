"""Deterministic operators, reductions and seeds on an NPU, exact fp32 arithmetic, and what cannot be promised."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, MutableMapping

from omni_devices.ascend import detection
from omni_devices.ascend.facts import FACTS
from omni_portable.contracts.device import DeterminismReport

NOT_PROMISED = (
    "Equal bits on another generation, with another CANN, driver or torch_npu: each brings other operators.",
    "Equal bits of one row in batches of another size, or in another place of its batch: torch_npu's stronger level, "
    "which would promise the latter, is for debugging.",
    "Equal bits of actor and rollout where vLLM-Ascend runs its own operators (it needs a batch-invariant build, which "
    "exists for A2 and A3 only).",
    "Equal bits with another number of devices or nodes: reductions run in another order.",
    "A fixed order of events between streams and processes.",
)


class AscendDeterminism:
    """Sets what torch_npu and HCCL offer.

    Args:
        generation: asked when it is enabled.
    """

    def __init__(self, generation: Callable[[], str]) -> None:
        self._generation = generation

    def enable(self, seed: int) -> DeterminismReport:
        """Ask for deterministic operators and reductions, exact fp32 products, and seed every generator.

        HCCL's variables are read when a communicator is made: call this before `init_process_group`.

        Args:
            seed: any non-negative integer.

        Raises:
            DeviceError: torch_npu does not load.
        """
        from omni_devices.common.seeding import enable_deterministic

        facts = FACTS[self._generation()]
        detection.load_torch_npu()
        late = set_variables(facts.deterministic, os.environ)
        applied = dict(facts.deterministic) | _set_arithmetic() | _seed_device(seed)
        report = enable_deterministic(seed, applied, (*NOT_PROMISED, facts.deterministic_note, *late))
        return DeterminismReport({**report.applied, **_set_level()}, report.not_promised)


def set_variables(variables: Mapping[str, str], environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Set variables of HCCL; a sentence for each that differed while a process group already existed."""
    import torch.distributed as dist

    started = dist.is_available() and dist.is_initialized()
    late = [name for name, value in variables.items() if started and environ.get(name) != value]
    environ.update(variables)
    return tuple(
        f"Deterministic reductions: {name} was set after the process group was made, which had read it."
        for name in late
    )


def _set_arithmetic() -> dict[str, str]:
    """No operators compiled on the fly, plain layouts, no fp32 product in the shorter HF32 (convolutions' default)."""
    import torch_npu

    torch_npu.npu.set_compile_mode(jit_compile=False)
    torch_npu.npu.config.allow_internal_format = False
    torch_npu.npu.matmul.allow_hf32 = False
    torch_npu.npu.conv.allow_hf32 = False
    return {
        "torch_npu.npu.set_compile_mode(jit_compile)": "False",
        "torch_npu.npu.config.allow_internal_format": "False",
        "torch_npu.npu.matmul.allow_hf32": "False",
        "torch_npu.npu.conv.allow_hf32": "False",
    }


def _seed_device(seed: int) -> dict[str, str]:
    import torch_npu

    torch_npu.npu.manual_seed_all(seed)
    return {"torch_npu.npu.manual_seed_all": str(seed)}


def _set_level() -> dict[str, str]:
    """torch_npu's own switch, where this version has it; it has to come after torch's, as it always warns."""
    import torch_npu

    if not hasattr(torch_npu.npu, "set_deterministic_level"):
        return {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*set_deterministic_level.*")
        torch_npu.npu.set_deterministic_level(1)
    return {"torch_npu.npu.set_deterministic_level": "1"}
