"""Bytes of activations in Stable Diffusion 3, counted layer by layer as torch's autograd keeps them.

The unit below is one value per token and channel of the transformer, in its dtype; tokens of the image and of the text
attend together. A block keeps for its backward pass, per stream:

    always                     input of both layer norms (1 + 1), input of the gelu (4)
    all weights trained        both norms' results (2), both modulated inputs of projections (2), the gelu's result (4),
                               the attention's part of the stream (1), results of output projection and feed-forward (2)
    a LoRA on a projection     its input: once for projections that share it in fp32, else an fp32 copy for each; and
                               `rank` fp32 values per token
    a LoRA on the modulation   results of both norms, of output projection and feed-forward (4)

and for both streams together: query, key, value and result of attention (4), with normalised queries and keys their
inputs too (2, an fp32 copy in narrower dtypes, and the normalised values where the norm is trained). A second attention
of the image stream keeps another query, key, value and result, and where it is trained its modulated input (1) and its
projected result (1). The last block's text stream ends with attention. A kernel that stores attention ('math') keeps
4 bytes per head and pair of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omni_portable.models.outline import DTYPE_BYTES, Workload
from omni_portable.models.sd3.shapes import FEED_FORWARD

FLOAT = 4
"""Bytes of what is kept in fp32 whatever the dtype."""

FORWARD_UNITS = 12
"""Units that live at once in a block without gradients: residual, what attention left, input and result of the gelu."""

BACKWARD_UNITS = 8
"""Units of gradients at the peak of the backward pass: of the gelu's input and result."""

LORA_FORWARD_BYTES = 6
"""Per token and input channel of an adapted layer in a narrow dtype: an fp32 copy of its input, and what follows."""

STORED = "math"
"""The family of kernels that keeps the attention matrix."""


@dataclass(frozen=True)
class Stream:
    """One stream of a block: where its layers are, and the layers that share an input (name, units of the input)."""

    attention: tuple[str, ...]
    output: str
    modulation: str
    feed_forward: str

    def inputs(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """(layers that share one input, its width in units) in the order of the forward pass."""
        yield self.attention, 1
        yield (self.output,), 1
        yield (f"{self.feed_forward}.net.0.proj",), 1
        yield (f"{self.feed_forward}.net.2",), FEED_FORWARD


IMAGE = Stream(("attn.to_q", "attn.to_k", "attn.to_v"), "attn.to_out.0", "norm1.linear", "ff")
TEXT = Stream(
    ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), "attn.to_add_out", "norm1_context.linear", "ff_context"
)
SECOND = ("attn2.to_q", "attn2.to_k", "attn2.to_v"), "attn2.to_out.0"
"""Projections and output of the second attention."""


@dataclass(frozen=True)
class Network:
    """What the counts need of a transformer.

    Args:
        width / heads / blocks: D, heads, number of blocks.
        dual: blocks with a second attention.
        qk_norm: queries and keys are normalised.
    """

    width: int
    heads: int
    blocks: int
    dual: frozenset[int]
    qk_norm: bool


def block_bytes(network: Network, index: int, image: int, text: int, work: Workload) -> int:
    """Kept by block `index` for one row of `image` and `text` tokens."""
    last = index == network.blocks - 1
    kept = image * _stream(IMAGE, network.width, work)
    kept += text * (_last_text(network.width, work) if last else _stream(TEXT, network.width, work))
    kept += (image + text) * _attention(network.width, network.qk_norm, work)
    if work.attention == STORED:
        kept += FLOAT * network.heads * (image + text) ** 2
    if index in network.dual:
        kept += image * (_second(network.width, work) + _attention(network.width, network.qk_norm, work))
        kept += FLOAT * network.heads * image**2 if work.attention == STORED else 0
    return kept


def ends_bytes(network: Network, image: int, text: int, joint_width: int, work: Workload) -> int:
    """Kept outside of the blocks: the last norm, and where all is trained its result, and inputs of the embedders."""
    size = DTYPE_BYTES[work.dtype]
    if work.lora_rank:
        return image * network.width * size
    return image * network.width * size * 3 + text * joint_width * size


def adapted(layer: str, targets: Sequence[str]) -> bool:
    """Does one of the LoRA targets select a layer of a block ('attn.to_q')?"""
    name = f"transformer_blocks.0.{layer}"
    return any(name.endswith(f".{target}") for target in targets)


def lora_forward_bytes(network: Network, work: Workload) -> int:
    """Per token: fp32 copies that an adapted layer makes in a narrow dtype, for the widest one."""
    if not work.lora_rank or DTYPE_BYTES[work.dtype] == FLOAT:
        return 0
    layers = [*IMAGE.inputs(), *TEXT.inputs()]
    widths = [units for names, units in layers if any(adapted(name, work.lora_targets) for name in names)]
    return LORA_FORWARD_BYTES * network.width * max(widths, default=1)


def _stream(stream: Stream, width: int, work: Workload) -> int:
    """Per token, attention's own part aside."""
    size = DTYPE_BYTES[work.dtype]
    kept = (2 + FEED_FORWARD) * width * size
    if not work.lora_rank:
        return kept + (4 + sum(units for _, units in stream.inputs())) * width * size
    kept += sum(_inputs(names, units * width, work) for names, units in stream.inputs())
    return kept + (4 * width * size if adapted(stream.modulation, work.lora_targets) else 0)


def _last_text(width: int, work: Workload) -> int:
    """The text stream of the last block: a norm, and the projections for attention."""
    size = DTYPE_BYTES[work.dtype]
    if not work.lora_rank:
        return 3 * width * size
    return width * size + _inputs(TEXT.attention, width, work)


def _attention(width: int, qk_norm: bool, work: Workload) -> int:
    """Query, key, value, result; inputs of the norms of queries and keys."""
    size = DTYPE_BYTES[work.dtype]
    kept = 4 * width * size
    if qk_norm:
        trained = 0 if work.lora_rank else size
        kept += 2 * width * (size + (FLOAT if size < FLOAT else 0) + trained)
    return kept


def _second(width: int, work: Workload) -> int:
    projections, output = SECOND
    if not work.lora_rank:
        return 2 * width * DTYPE_BYTES[work.dtype]
    kept = _inputs(projections, width, work)
    if DTYPE_BYTES[work.dtype] < FLOAT:  # in fp32 the output layer's input is attention's result, which is counted
        kept += _inputs((output,), width, work)
    return kept


def _inputs(names: Sequence[str], width: int, work: Workload) -> int:
    """Kept per token for the LoRAs on layers that share an input of `width` channels."""
    count = sum(adapted(name, work.lora_targets) for name in names)
    copies = min(count, 1) if DTYPE_BYTES[work.dtype] == FLOAT else count
    return FLOAT * (copies * width + count * work.lora_rank)
