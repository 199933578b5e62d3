"""Attention kernels of diffusers and transformers models, applied and read back: every setter checks that the choice
has arrived, because the libraries let a choice that has no effect pass without a word."""

from __future__ import annotations

from typing import Any

from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

from omni_portable.contracts.device import AttentionChoice
from omni_portable.contracts.errors import AttentionUnavailable
from omni_portable.models.loading import quiet_libraries

DEFAULT = "native"
"""Without a choice: torch's scaled dot product attention, as the stock pipelines use."""

_VAE_PROCESSORS: dict[str, type] = {"native": AttnProcessor2_0, "_native_math": AttnProcessor}


def apply_to_transformer(transformer: Any, choice: AttentionChoice | None, processor: object | None = None) -> str:
    """Make every attention layer of a diffusers transformer use the chosen backend; returns its name.

    Args:
        processor: takes the place of the layers' own, for families whose own ignores the backend.

    Raises:
        AttentionUnavailable: not a diffusers backend, its package is missing, or a layer did not take it.
    """
    backend = diffusers_name(choice, "transformer")
    if processor is not None:
        transformer.set_attn_processor(processor)
    try:
        with quiet_libraries():
            transformer.set_attention_backend(backend)
    except (ValueError, RuntimeError, ImportError) as error:
        raise AttentionUnavailable(
            f"diffusers cannot use the attention backend '{backend}' for the transformer: {error}"
        ) from error
    for name, own in transformer.attn_processors.items():
        if getattr(own, "_attention_backend", None) != backend:
            raise AttentionUnavailable(f"the attention layer '{name}' did not take the backend '{backend}'")
    return backend


def apply_to_vae(vae: Any, choice: AttentionChoice | None) -> str:
    """Set the kernel of an `AutoencoderKL`'s attention, if it has any; returns its name.

    Raises:
        AttentionUnavailable: a backend that diffusers' VAE layers do not offer.
    """
    backend = diffusers_name(choice, "vae")
    if backend not in _VAE_PROCESSORS:
        raise _vae_unavailable("AutoencoderKL", backend, ("sdpa", "math"))
    vae.set_attn_processor(_VAE_PROCESSORS[backend]())
    return backend


def fixed_vae_attention(vae: Any, choice: AttentionChoice | None) -> str:
    """The kernel of an autoencoder whose layers call torch's scaled dot product attention themselves.

    Raises:
        AttentionUnavailable: another kernel was chosen.
    """
    backend = diffusers_name(choice, "vae")
    if backend != DEFAULT:
        raise _vae_unavailable(type(vae).__name__, backend, ("sdpa",))
    return backend


def text_encoder_attention(choice: AttentionChoice | None) -> str:
    """The attn_implementation of transformers' text encoders."""
    if choice is None:
        return "sdpa"
    if choice.actor_library != "transformers":
        raise AttentionUnavailable(
            f"the text encoders are transformers models, the chosen '{choice.actor}' is a {choice.actor_library} name"
        )
    return choice.actor


def diffusers_name(choice: AttentionChoice | None, component: str) -> str:
    """The backend's name in diffusers' registry; :data:`DEFAULT` without a choice."""
    if choice is None:
        return DEFAULT
    if choice.actor_library != "diffusers":
        raise AttentionUnavailable(
            f"the {component} is a diffusers model, the chosen '{choice.actor}' is a {choice.actor_library} name"
        )
    return choice.actor


def _vae_unavailable(name: str, backend: str, choices: tuple[str, ...]) -> AttentionUnavailable:
    return AttentionUnavailable(
        f"diffusers' {name} cannot use the attention backend '{backend}'",
        remedy="choose another family for device.attention.vae",
        choices=choices,
    )
