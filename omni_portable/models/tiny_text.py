"""Tokenizers of tiny models, made in code: one token per character, so that nothing has to be downloaded."""

from __future__ import annotations

import string

from tokenizers import processors
from transformers import GemmaTokenizer, T5TokenizerFast

CHARACTERS = string.ascii_lowercase + string.digits + string.punctuation


def tiny_t5_tokenizer() -> T5TokenizerFast:
    """Lower-case letters, digits and punctuation; all other characters are unknown."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((c, -3.0) for c in CHARACTERS)]
    return T5TokenizerFast(vocab=vocabulary, extra_ids=0)


def tiny_gemma_tokenizer(length: int) -> GemmaTokenizer:
    """As :func:`tiny_t5_tokenizer`, with a start token before every prompt.

    Args:
        length: longest prompt, in tokens.
    """
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocabulary = {token: index for index, token in enumerate([*special, "▁", *CHARACTERS])}
    tokenizer = GemmaTokenizer(vocab=vocabulary, merges=[], model_max_length=length)
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return tokenizer
