"""Attention kernels of a device as data: one row per kernel family, with everything it can and cannot do.

A device writes a :class:`KernelTable`; :class:`omni_devices.common.selector.TableAttention` answers from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from omni_portable.contracts.device import Component, MaskKind, PackageNeed

COMPONENTS: tuple[Component, ...] = get_args(Component)
NO_ROLLOUT_KERNEL = "NO_ROLLOUT_KERNEL"
"""Stands for the rollout spelling where vLLM and vLLM-Omni have no such kernel. It is in neither registry, so an
engine that looks it up fails; an engine that runs the actor's library uses the actor's spelling instead."""


@dataclass(frozen=True)
class Names:
    """One family's spellings for one component.

    Args:
        actor: diffusers attention backend or transformers attn_implementation.
        actor_library: which of the two.
        rollout: vLLM backend (language_model) or vLLM-Omni backend (the others), or `NO_ROLLOUT_KERNEL`.
        note: for people; part of the choice's reason.
        dtypes: where they differ from the row's; empty means the row's.
        masks: where they differ from the row's; None means the row's.
        causal: where it differs from the row's; None means the row's.
        grouped_query: where it differs from the row's; None means the row's.
        variable_length: where it differs from the row's; None means the row's.
    """

    actor: str
    actor_library: Literal["diffusers", "transformers"]
    rollout: str
    note: str = ""
    dtypes: tuple[str, ...] = ()
    masks: tuple[MaskKind, ...] | None = None
    causal: bool | None = None
    grouped_query: bool | None = None
    variable_length: bool | None = None


@dataclass(frozen=True)
class KernelRow:
    """What one kernel family can do on one device.

    Args:
        family: the name recipes use ('sdpa', 'flash_attention_2', ...).
        names: component -> spellings; a component that is left out is not served.
        summary: what the kernel is, a few words for messages and generated docs.
        generations: that can run it; empty means every generation of the device.
        needs: distributions of the actor's side, all of which must be installed.
        rollout_needs: distributions that the rollout engine's side needs besides the engine itself.
        dtypes: that it computes in.
        head_dim_max: largest head dimension; None where there is no limit.
        head_dim_multiple: head dimensions must be multiples of this.
        masks: kinds it serves, besides which causal may be asked for.
        backward: has a backward pass; a family without one is refused wherever a component trains.
        deterministic: equal bits on every call, backward pass included.
        withheld: component that `names` leaves out -> why, for messages.
    """

    family: str
    names: Mapping[Component, Names]
    summary: str
    generations: tuple[str, ...] = ()
    needs: tuple[PackageNeed, ...] = ()
    rollout_needs: tuple[PackageNeed, ...] = ()
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    head_dim_max: int | None = None
    head_dim_multiple: int = 1
    masks: tuple[MaskKind, ...] = ("none",)
    causal: bool = True
    grouped_query: bool = True
    variable_length: bool = False
    backward: bool = True
    deterministic: bool = True
    withheld: Mapping[Component, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelTable:
    """All rows of a device.

    Args:
        device: its name, for messages.
        rows: in the order in which choices are listed.
        defaults: component -> family that 'auto' means.
        generation_defaults: generation -> the components whose default differs there.
        elsewhere: family that other devices offer -> why this one does not.
    """

    device: str
    rows: tuple[KernelRow, ...]
    defaults: Mapping[Component, str]
    generation_defaults: Mapping[str, Mapping[Component, str]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def row(self, family: str, generation: str) -> KernelRow | None:
        """The row of a family that serves the generation; where none does, None.

        A family may have several rows, for generations that differ.
        """
        rows = [row for row in self.rows if row.family == family]
        return next((row for row in rows if not row.generations or generation in row.generations), None)

    def offered(self, component: Component, generation: str) -> list[str]:
        """Families that serve the component on the generation."""
        families = dict.fromkeys(row.family for row in self.rows)
        rows = {family: self.row(family, generation) for family in families}
        return [family for family, row in rows.items() if row is not None and component in row.names]

    def default(self, component: Component, generation: str) -> str:
        """The one documented default."""
        return self.generation_defaults.get(generation, {}).get(component, self.defaults[component])

    def spelled(self, name: str, component: Component, generation: str) -> list[str]:
        """Families offered here of which `name` is a spelling, for whatever component ('native' -> ['sdpa'])."""
        if name == NO_ROLLOUT_KERNEL:
            return []
        offered = self.offered(component, generation)
        rows = [row for family in offered if (row := self.row(family, generation)) is not None]
        return [row.family for row in rows if any(name in (one.actor, one.rollout) for one in row.names.values())]

    def faults(self, generations: Sequence[str]) -> list[str]:
        """What is wrong with the table itself, one sentence each; for tests of a device.

        Args:
            generations: all that the device knows; ('',) where it has none.
        """
        return [
            *self._unknown_generations(generations),
            *(fault for generation in generations for fault in self._faults(generation)),
        ]

    def _unknown_generations(self, generations: Sequence[str]) -> Iterator[str]:
        for row in self.rows:
            for unknown in sorted(set(row.generations) - set(generations)):
                yield f"a row of '{row.family}' names the unknown generation '{unknown}'"
            if both := set(row.names) & set(row.withheld):
                yield f"'{row.family}' both serves and withholds {', '.join(sorted(both))}"
        for unknown in sorted(set(self.generation_defaults) - set(generations)):
            yield f"generation_defaults names the unknown generation '{unknown}'"

    def _faults(self, generation: str) -> Iterator[str]:
        serving = [row.family for row in self.rows if not row.generations or generation in row.generations]
        for family in sorted({family for family in serving if serving.count(family) > 1}):
            yield f"several rows of '{family}' serve generation '{generation}'"
        for family in sorted(set(serving) & set(self.elsewhere)):
            yield f"'{family}' is offered on generation '{generation}' and listed as not to be had"
        for component in COMPONENTS:
            if component not in self.defaults:
                yield f"{component} has no default"
            elif self.default(component, generation) not in self.offered(component, generation):
                yield f"the default of {component} on generation '{generation}' is not offered there"
