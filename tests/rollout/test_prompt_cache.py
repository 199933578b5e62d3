from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Extent
from omni_portable.rollout.prompt_cache import PromptCache, media_key

SIZE = Extent(16, 16)


class Encoder:
    def __init__(self):
        self.calls = []

    def __call__(self, prompt, media, extent=None):
        self.calls.append(prompt)
        return {"tokens": torch.tensor([float(len(self.calls))])}


def image(value, name="image", shape=(3, 2, 2)):
    return {name: MediaArtifact(name, "image", torch.full(shape, value, dtype=torch.uint8), "CHW")}


@given(st.lists(st.sampled_from("abcdef"), max_size=60), st.integers(0, 5))
def test_cache_behaves_like_the_textbook_lru(prompts, size):
    encoder = Encoder()
    cache = PromptCache(size, encoder)
    model: OrderedDict[str, None] = OrderedDict()
    hits = misses = 0
    for prompt in prompts:
        known = prompt in model
        hits, misses = hits + known, misses + (not known)
        calls = len(encoder.calls)
        cache.get(prompt, {}, SIZE)
        assert len(encoder.calls) - calls == (0 if known else 1)
        model.pop(prompt, None)
        model[prompt] = None
        while len(model) > size:
            model.popitem(last=False)
    statistics = cache.statistics()
    assert (statistics.hits, statistics.misses, statistics.entries) == (hits, misses, len(model))


def test_a_hit_returns_what_was_encoded():
    cache = PromptCache(2, Encoder())
    first = cache.get("a", {}, SIZE)
    assert cache.get("a", {}, SIZE) is first


def test_size_zero_is_off():
    encoder = Encoder()
    cache = PromptCache(0, encoder)
    cache.get("a", {}, SIZE)
    cache.get("a", {}, SIZE)
    assert encoder.calls == ["a", "a"]
    assert cache.statistics().entries == 0


def test_media_are_told_apart_by_content_not_by_object():
    assert media_key(image(1)) == media_key(image(1))
    different = [
        {},
        image(1),
        image(2),
        image(1, "mask"),
        image(1, shape=(3, 1, 4)),
        {"image": MediaArtifact("image", "text", "1", "str")},
        {"image": MediaArtifact("image", "audio", torch.zeros(1, 4), "CT", sample_rate=16000)},
        {"image": MediaArtifact("image", "audio", torch.zeros(1, 4), "CT", sample_rate=48000)},
        {"image": MediaArtifact("image", "latents", torch.zeros(1, 4), "any")},
    ]
    assert len({media_key(media) for media in different}) == len(different)


def test_same_prompt_with_other_media_is_encoded_again():
    encoder = Encoder()
    cache = PromptCache(4, encoder)
    for media in ({}, image(1), image(2), image(1)):
        cache.get("a", media, SIZE)
    assert len(encoder.calls) == 3


def test_clear_forgets_entries():
    encoder = Encoder()
    cache = PromptCache(4, encoder)
    cache.get("a", {}, SIZE)
    cache.clear()
    cache.get("a", {}, SIZE)
    assert len(encoder.calls) == 2


def test_negative_size_is_refused():
    with pytest.raises(ConfigError, match="prompt_cache_size is -1"):
        PromptCache(-1, Encoder())
