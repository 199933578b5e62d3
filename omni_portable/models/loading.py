"""Loading models from folders in diffusers / transformers format: everything is checked, nothing is downloaded.

The libraries' own loaders do the work. What they let pass with a warning (missing or unexpected tensors, a pickle where
safetensors are absent) is an error here, and every error names the file. What needs no torch is in `folders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers.utils.logging as diffusers_logging
import torch
import transformers.utils.logging as transformers_logging

from omni_portable.contracts.errors import ModelError
from omni_portable.models.folders import DIFFUSERS_STEM, TRANSFORMERS_STEM, read_json, weight_files

_LIBRARY_LOGGING: tuple[Any, ...] = (diffusers_logging, transformers_logging)


def load_diffusers(cls: Any, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """A diffusers model from its folder, in evaluation mode on the CPU."""
    config = read_json(folder / "config.json")
    if config.get("_class_name") != cls.__name__:
        raise ModelError(f"{folder / 'config.json'} describes a {config.get('_class_name')}, not a {cls.__name__}")
    files = weight_files(folder, DIFFUSERS_STEM)

    def load() -> tuple[torch.nn.Module, Mapping[str, Any]]:
        loaded: tuple[torch.nn.Module, Mapping[str, Any]] = cls.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
        return loaded

    return _load(load, folder, files)


def load_transformers(
    cls: Any, folder: Path, dtype: torch.dtype, attention: str, *, whole: str = "", ignored: tuple[str, ...] = ()
) -> torch.nn.Module:
    """A transformers model from its folder, in evaluation mode on the CPU, with the given attn_implementation.

    Args:
        whole: name of a larger model whose folder may be given too, of which `cls` is a part.
        ignored: prefixes of that folder's tensors which the part does not have.
    """
    config = read_json(folder / "config.json")
    described = config.get("architectures") or [cls.__name__]
    if not isinstance(described, list) or not {cls.__name__, whole} & set(described):
        found = described[0] if isinstance(described, list) else described
        raise ModelError(f"{folder / 'config.json'} describes a {found}, not a {cls.__name__}")
    files = weight_files(folder, TRANSFORMERS_STEM)

    def load() -> tuple[torch.nn.Module, Mapping[str, Any]]:
        loaded: tuple[torch.nn.Module, dict[str, Any]] = cls.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        loaded[1]["unexpected_keys"] = [
            name for name in loaded[1]["unexpected_keys"] if not str(name).startswith(ignored)
        ]
        return loaded

    return _load(load, folder, files)


def load_tokenizer(cls: Any, folder: Path, vocabularies: Sequence[tuple[str, ...]]) -> Any:
    """A tokenizer from its folder.

    Args:
        vocabularies: sets of files, one of which must be complete (a tokenizer without them would load empty).
    """
    if not any(all((folder / name).is_file() for name in names) for names in vocabularies):
        needed = " or ".join(" + ".join(names) for names in vocabularies)
        raise ModelError(f"the tokenizer folder {folder} lacks its vocabulary ({needed})")
    try:
        with quiet_libraries():
            return cls.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - on damaged files the libraries raise errors of every kind
        raise ModelError(f"the tokenizer in {folder} cannot be loaded: {error}") from error


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep the libraries' progress bars and warnings out of the run's output while a model loads."""
    found = [(log, log.get_verbosity(), log.is_progress_bar_enabled()) for log in _LIBRARY_LOGGING]
    for log in _LIBRARY_LOGGING:
        log.set_verbosity_error()
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log, verbosity, bars in found:
            log.set_verbosity(verbosity)
            if bars:
                log.enable_progress_bar()


def _load(
    load: Callable[[], tuple[torch.nn.Module, Mapping[str, Any]]], folder: Path, files: Sequence[Path]
) -> torch.nn.Module:
    weights = ", ".join(str(path) for path in files)
    try:
        with quiet_libraries():
            model, info = load()
    except Exception as error:  # noqa: BLE001 - on damaged files the libraries raise errors of every kind
        raise ModelError(
            f"{folder / 'config.json'} and {weights} do not make a model: {error}",
            remedy="config and weights must come from the same checkpoint",
        ) from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        names = sorted(str(name) for name in info.get(problem) or ())
        if names:
            raise ModelError(
                f"{weights} does not fit {folder / 'config.json'}: {len(names)} {problem.replace('_', ' ')}, "
                f"first '{names[0]}'",
                remedy="config and weights must come from the same checkpoint",
            )
    _own_buffers(model)
    return model.eval()


def _own_buffers(module: torch.nn.Module) -> None:
    """Give every buffer that is a view a tensor of its own.

    Loaders leave buffers as views of a mapped file; the view keeps its base alive, and with it memory that sleep could
    not release (parameters are detached from theirs when they are made).
    """
    for child in module.modules():
        for name, buffer in child._buffers.items():
            if buffer is not None and buffer._is_view():
                child._buffers[name] = buffer.detach().clone()
