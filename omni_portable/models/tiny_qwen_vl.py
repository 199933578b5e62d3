"""A tiny Qwen2.5-VL with random weights and a tokenizer in which given words are single tokens, made in code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import pre_tokenizers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def word_tokenizer(texts: Sequence[str]) -> Qwen2Tokenizer:
    """A byte-level tokenizer; every piece of `texts` that the published one's rules split off is one token.

    The published templates then have as many tokens as with the published vocabulary, in which all their words are.
    """
    pieces = sorted(set(_pieces(texts)), key=lambda piece: (not piece.startswith("Ġ"), piece))
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: dict[tuple[str, str], None] = {}
    for piece in pieces:
        for end in range(1, len(piece)):
            merges[piece[:end], piece[end]] = None
            vocabulary.setdefault(piece[: end + 1], len(vocabulary))
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=list(merges))
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    return tokenizer


def _pieces(texts: Iterable[str]) -> Iterable[str]:
    split = Qwen2Tokenizer()._tokenizer.pre_tokenizer.pre_tokenize_str
    for text in texts:
        for special in SPECIAL:
            text = text.replace(special, "\n")
        yield from (piece for piece, _ in split(text) if "Ċ" not in piece)


def tiny_qwen_vl(
    tokenizer: Qwen2Tokenizer, *, hidden: int, layers: int, vision_hidden: int = 16, vision_layers: int = 2
) -> Qwen2_5_VLForConditionalGeneration:
    """A model with the tokenizer's vocabulary; weights follow torch's seed. `hidden` is a multiple of 16."""
    heads = 2
    token = tokenizer.convert_tokens_to_ids
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 2 * heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": _sections(hidden // (4 * heads)),
            },
            "bos_token_id": token("<|endoftext|>"),
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
        },
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_hidden,
            "intermediate_size": 2 * vision_hidden,
            "num_heads": 2,
            "out_hidden_size": hidden,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [vision_layers - 1],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def _sections(pairs: int) -> list[int]:
    """Rotary pairs for frame, row and column, together `pairs`."""
    side = max(1, pairs * 3 // 8)
    return [pairs - 2 * side, side, side]
