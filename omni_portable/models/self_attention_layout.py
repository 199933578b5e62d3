"""Names in a rollout engine that fuses the projections of self-attention only, and keeps those of cross-attention."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.models.fused_layout import SELF_ATTENTION, FusedLayout


@dataclass(frozen=True)
class SelfAttentionLayout(FusedLayout):
    """A :class:`FusedLayout` whose projections are fused in the named attention modules alone.

    Args:
        attentions: names of the modules whose `to_q`, `to_k`, `to_v` are one `to_qkv` in the engine.
    """

    attentions: frozenset[str] = frozenset()

    def rollout_name(self, name: str) -> tuple[str, str | None]:
        """As :meth:`FusedLayout.rollout_name`."""
        found, shard = super().rollout_name(name)
        if shard is not None and name.split(".")[-3] not in self.attentions:
            return self.renamed_only(name), None
        return found, shard

    def renamed_only(self, name: str) -> str:
        """A name whose tensor stays whole."""
        for own, theirs in self.renamed.items():
            name = name.replace(f".{own}.", f".{theirs}.")
        return name


def self_attention_layout(*attentions: str, renamed: dict[str, str] | None = None) -> SelfAttentionLayout:
    """The layout of a transformer with `attentions` as its self-attention modules."""
    return SelfAttentionLayout(SELF_ATTENTION, renamed or {}, frozenset(attentions))
