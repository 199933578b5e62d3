"""Which process does what: data ranks hold samples of their own; those of one sequence or tensor group share them."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.config.schema import ActorConfig


@dataclass(frozen=True)
class Layout:
    """Rank = (data rank * sequence + sequence rank) * tensor + tensor rank.

    Args:
        data / sequence / tensor: sizes of the groups; their product is the number of processes.
    """

    data: int
    sequence: int = 1
    tensor: int = 1

    @classmethod
    def of(cls, actor: ActorConfig) -> Layout:
        """From the `actor` section, whose sizes were checked to divide each other."""
        sequence, tensor = actor.sequence_parallel, actor.tensor_parallel
        return cls(actor.world_size // (sequence * tensor), sequence, tensor)

    @property
    def size(self) -> int:
        """Processes."""
        return self.data * self.sequence * self.tensor

    @property
    def together(self) -> int:
        """Processes that work on the same samples."""
        return self.sequence * self.tensor

    def data_rank(self, rank: int) -> int:
        """Which share of the samples a process works on."""
        return rank // self.together

    def leads(self, rank: int) -> bool:
        """Whether a process answers for those that share its samples."""
        return rank % self.together == 0
