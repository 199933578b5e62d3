"""Recordings survive being written and read, and damaged or foreign ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni_portable.conformance.evidence.record import (
    FLOORS,
    MARGINS,
    SMALLEST,
    all_figures,
    bounds_of,
    record,
    with_spread,
)
from omni_portable.conformance.evidence.recording import (
    ABOUT,
    TENSORS,
    Recording,
    check_weights,
    digest_model,
    golden_folder,
    model_name,
    read_recording,
    write_recording,
)
from omni_portable.contracts.errors import ConsistencyError, DataError
from tests.conformance.evidence_doubles import SETTINGS, toy_context


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recording:
    return record(toy_context(monkeypatch, tmp_path).setup, SETTINGS)


def test_a_replay_of_what_was_just_recorded_is_equal(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = all_figures(toy_context(monkeypatch, tmp_path).setup, recording)
    assert len(figures) == 17
    assert set(figures.values()) == {0.0}


def test_row_by_row_is_close(recording: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert max(all_figures(toy_context(monkeypatch, tmp_path).setup, recording, 1).values()) < 1e-5


def test_reading_gives_back_what_was_written(recording: Recording, tmp_path: Path) -> None:
    complete = with_spread(recording, {"float32": {"same": {"velocity_error": 1e-7}}}, {"date": "2026-01-02"})
    write_recording(tmp_path / "golden" / "toy", complete)
    again = read_recording(tmp_path / "golden" / "toy")
    assert again.tensors.keys() == complete.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in complete.tensors.items())
    texts = [json.dumps(one.settings.as_data(), sort_keys=True) for one in (again, complete)]
    assert texts[0] == texts[1]
    for name in ("scalars", "weights", "provenance", "spread", "bounds"):
        assert getattr(again, name) == getattr(complete, name)


def test_what_is_kept_of_a_case(recording: Recording) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in recording.case("guided").items()}
    assert shapes == {
        "conditioning.tokens": (2, 6, 16),
        "negative.tokens": (2, 6, 16),
        "latents": (2, 5, 4, 4, 6),
        "velocity": (2, 4, 4, 4, 6),
        "std": (2, 4),
        "log_probs": (2, 2),
        "artifact.image": (2, 3, 4, 6),
    }
    assert recording.case("guided")["std"][:, [1, 3]].tolist() == [[0, 0], [0, 0]]


def spoil_json(folder: Path) -> None:
    (folder / ABOUT).write_text("{}")


def spoil_case(folder: Path) -> None:
    about = json.loads((folder / ABOUT).read_text())
    about["settings"]["cases"][0]["colour"] = "red"
    (folder / ABOUT).write_text(json.dumps(about))


def spoil_tensors(folder: Path) -> None:
    data = bytearray((folder / TENSORS).read_bytes())
    data[-1] ^= 1
    (folder / TENSORS).write_bytes(data)


def lose_tensors(folder: Path) -> None:
    (folder / TENSORS).unlink()


@pytest.mark.parametrize("spoil", [spoil_json, spoil_case, spoil_tensors, lose_tensors])
def test_damage_is_refused(spoil, recording: Recording, tmp_path: Path) -> None:
    folder = tmp_path / "golden"
    write_recording(folder, recording)
    spoil(folder)
    with pytest.raises(DataError, match="record_golden"):
        read_recording(folder)


def test_other_weights_are_refused(recording: Recording, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "transformer").mkdir(parents=True)
    (model / "transformer" / "w.safetensors").write_bytes(b"1")
    (model / "README.md").write_text("not a weight")
    known = replace(recording, weights=digest_model(model))
    assert list(known.weights) == ["transformer/w.safetensors"]
    check_weights(known, model)
    (model / "transformer" / "w.safetensors").write_bytes(b"2")
    with pytest.raises(ConsistencyError, match="transformer/w.safetensors"):
        check_weights(known, model)
    (model / "transformer" / "w.safetensors").unlink()
    with pytest.raises(ConsistencyError, match="transformer/w.safetensors"):
        check_weights(known, model)


@pytest.mark.parametrize(
    ("path", "name"), [("builtin:glyph-sd3", "glyph-sd3"), ("/models/sd3.5/", "sd3.5"), ("tiny", "tiny")]
)
def test_the_model_is_the_key(path: str, name: str) -> None:
    assert model_name(path) == name
    assert golden_folder(path, Path("/x")) == Path("/x") / name


def test_bounds_are_margins_over_the_widest_variant() -> None:
    variants = [
        {"velocity_error": 2e-6, "artifact_error_max": 0.0},
        {"velocity_error": 3e-6, "artifact_error_max": 0.0},
    ]
    bounds = bounds_of("float32", variants)
    assert bounds["velocity_error"] == pytest.approx(3e-6 * MARGINS["float32"])
    assert bounds["artifact_error_max"] == FLOORS["artifact_error_max"]
    assert bounds_of("float32", [{"artifact_error_max": 3.0}]) == {"artifact_error_max": 6.0}
    assert bounds_of("bfloat16", [{"std_error": 0.0}]) == {"std_error": SMALLEST["bfloat16"]}
