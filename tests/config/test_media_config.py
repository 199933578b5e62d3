"""`data.media` and `data.targets`: what the model, the engine and the algorithm can make of them."""

from __future__ import annotations

import pytest

from omni_portable.config.loader import load_config
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.registry import PluginSpec
from tests.config.fakes import FakePoint

GIVEN = ("rollout.engine=given", "algorithm={name: plain}")
TARGET = "data.targets={image: {fields: [win]}}"


@pytest.fixture
def recipe(recipe: str) -> str:
    """The small recipe, and plugins that know of media."""

    def add(group: str, name: str, **capabilities: object) -> None:
        registry._entry_points(group)[name] = FakePoint(
            name, "x:y", PluginSpec(name, "", "x:y", capabilities=capabilities)
        )

    add("rollout_engine", "given", given_samples=True)
    add("model", "editor", kinds=("diffusion",), artifacts={"image": "image"}, inputs=("image", "mask"))
    add(
        "model",
        "filmer",
        kinds=("diffusion",),
        artifacts={"video": "video", "audio": "audio"},
        inputs={"first_frame": "image"},
    )
    add("model", "talker", kinds=("autoregressive",), artifacts={"response": "text"}, inputs=("image", "audio"))
    add("model", "blind", kinds=("diffusion",), inputs=())
    add("algorithm", "token", kind="token")
    return recipe


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["data.media={image: {modality: picture}}"],
            ["data.media.image.modality", "valid choices: image, video, audio"],
        ),
        (["data.media={image: {}}"], ["data.media.image.modality", "no value"]),
        (["data.media={image: {modality: image, resize: zoom}}"], ["resize", "pad, crop, stretch"]),
        (
            ["data.media={image: {modality: image, fps: 2}}"],
            ["fps means nothing for image", "remove data.media.image.fps"],
        ),
        (["data.media={image: {modality: image, height: 8}}"], ["height and data.media.image.width go together"]),
        (["data.media={image: {modality: image, height: -8, width: 8}}"], ["at least 0"]),
        (
            ["data.media={image: {modality: audio, sample_rate: 2000000}}"],
            ["data.media.image.sample_rate", "at most 1000000"],
        ),
        (["data.media={image: {modality: video, fps: 1e9}}"], ["data.media.image.fps", "at most 1000"]),
        (["data.media={image: {modality: image, height: 99999, width: 8}}"], ["height", "at most 16384"]),
        (["data.media={image: {modality: audio, sampling_rate: 8}}"], ["unknown configuration key"]),
        (["data.media={x: {modality: image}}"], ["takes no medium of that name", "valid choices: image, mask"]),
        (
            ["model.family=filmer", "data.media={first_frame: {modality: video}}"],
            ["first_frame.modality=video", "choices: image"],
        ),
        ([TARGET], ["data.targets is set, but rollout.engine=native", "rollout.engine=dataset"]),
        (["rollout.engine=given", TARGET], ["algorithm.name=grpo needs the log-probs"]),
        ([*GIVEN], ["data.targets is empty"]),
        ([*GIVEN, "rollout.n=2", TARGET], ["names 1 samples per prompt, but rollout.n=2", "set rollout.n=1"]),
        ([*GIVEN, "rollout.n=2", "data.targets={image: {fields: [a, a]}}"], ["names a field twice"]),
        ([*GIVEN, "rollout.n=1", "data.targets={sound: {fields: [a]}}"], ["makes no artifact 'sound'"]),
        ([*GIVEN, "rollout.n=1", "data.targets={image: {fields: [a], resize: zoom}}"], ["none, pad, crop, stretch"]),
        (["model.family=filmer", *GIVEN, "data.targets={video: {fields: [a]}}"], ["makes 'audio' too"]),
    ],
)
def test_refusals_name_the_key_and_what_would_do(recipe, overrides, parts):
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, ["model.family=editor", "reward.scorers={r: {kind: remote, url: x}}", *overrides])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.family=editor", "data.media={image: {modality: image, height: 8, width: 8}}"],
        ["model.family=filmer", "data.media={first_frame: {modality: image, optional: true, field: images.0}}"],
        ["data.media={whatever: {modality: audio}}"],  # a family that does not say what it takes
        ["model.family=editor", *GIVEN, "rollout.n=2", "data.targets={image: {fields: [win, lose]}}"],
        ["model.family=talker", "algorithm={name: token}", "rollout.engine=texts", "data.media={x: {modality: audio}}"],
    ],
)
def test_what_fits_is_accepted(recipe, overrides):
    load_config(recipe, ["reward.scorers={r: {kind: remote, url: x}}", *overrides])


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("blind", "data.media.x: model family 'blind' takes no input media"),
        ("talker", "data.media.x.modality=video: model family 'talker' does not take it"),
    ],
)
def test_models_that_do_not_take_it(recipe, family, message):
    token = ["algorithm={name: token}", "rollout.engine=texts"] if family == "talker" else []
    scorer = "reward.scorers={r: {kind: remote, url: x}}"
    with pytest.raises(CapabilityError, match=message):
        load_config(recipe, [scorer, f"model.family={family}", *token, "data.media={x: {modality: video}}"])
