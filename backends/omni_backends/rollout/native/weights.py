"""The engine's policy weights: what an update must bring, and how it is applied, completely or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightManifest, WeightStream
from omni_portable.models.lora import lora_named_tensors, verify_lora
from omni_portable.models.weights import apply_tensors, canonical_name, checksums, named_tensors, receive


class PolicyWeights:
    """The tensors of a transformer that weight updates replace: its LoRA matrices, or all of its parameters.

    Args:
        module: the transformer, LoRA injected where there is one.
        lora: what was injected; None for full weights.
    """

    def __init__(self, module: torch.nn.Module, lora: LoraInfo | None) -> None:
        self._module = module
        self._lora = lora

    def receive(self, stream: WeightStream) -> dict[str, torch.Tensor]:
        """Read and verify a whole stream; the module is not touched.

        Raises:
            WeightSyncError: the manifest does not fit the module, or what arrived does not fit the manifest.
        """
        self._check_manifest(stream.manifest)
        try:
            return receive(stream)
        except WeightSyncError:
            raise
        except Exception as error:
            raise WeightSyncError(f"the weight stream broke off: {error}") from error

    def replace(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Write verified tensors into the module; on any failure the former ones are put back, bit for bit.

        Returns:
            The former ones, on the host.

        Raises:
            WeightSyncError: writing failed, or the module does not hold what was written.
        """
        own = self._tensors()
        former = {name: own[name].detach().to("cpu", copy=True) for name in tensors}
        try:
            apply_tensors(self._module, tensors)
            self._prove(tensors)
        except BaseException as error:
            apply_tensors(self._module, former)
            if isinstance(error, WeightSyncError) or not isinstance(error, Exception):
                raise
            raise WeightSyncError(f"applying a weight update failed: {error}") from error
        return former

    def checksums(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Checksum per tensor, of all that updates replace or of the named tensors (any canonical name of the module).

        Raises:
            WeightSyncError: the module has no tensor of a name.
        """
        if names is None:
            return checksums(self._tensors().items())
        held = named_tensors(self._module)
        wanted = list(names)
        unknown = [name for name in wanted if name not in held]
        if unknown:
            raise WeightSyncError(f"the rollout engine 'native' holds no tensors {unknown[:3]} ({len(unknown)} in all)")
        return checksums((name, held[name]) for name in wanted)

    def restore_base(self, source: torch.nn.Module) -> None:
        """Copy everything, buffers too, from a freshly loaded module of the same structure."""
        loaded = {**dict(source.named_parameters()), **dict(source.named_buffers())}
        with torch.no_grad():
            for name, tensor in (*self._module.named_parameters(), *self._module.named_buffers()):
                tensor.copy_(loaded[name])

    def describe(self) -> str:
        """One phrase for acknowledgements: what an update binds."""
        if self._lora is None:
            return "full weights"
        scale = self._lora.alpha / self._lora.rank
        return f"LoRA of rank {self._lora.rank} bound to {self._lora.expected_modules} modules at scale {scale:g}"

    def _tensors(self) -> dict[str, torch.Tensor]:
        if self._lora is not None:
            return dict(lora_named_tensors(self._module))
        return {canonical_name(name): parameter for name, parameter in self._module.named_parameters()}

    def _check_manifest(self, manifest: WeightManifest) -> None:
        mode = "full" if self._lora is None else "adapter"
        if manifest.mode != mode:
            raise WeightSyncError(
                f"the rollout engine 'native' takes weight updates of mode '{mode}', not '{manifest.mode}'",
                remedy="build actor and rollout engine from one model.lora section",
            )
        own, sent = self._tensors(), manifest.tensors
        for problem, names in (
            ("lacks", [name for name in own if name not in sent]),
            ("holds the unknown", [name for name in sent if name not in own]),
        ):
            if names:
                raise WeightSyncError(f"the weight update {problem} tensor '{names[0]}' ({len(names)} in all)")
        if self._lora is not None:
            self._check_lora(manifest.lora, sum(".lora_A." in name for name in sent))

    def _check_lora(self, sent: LoraInfo | None, modules: int) -> None:
        """What the stream says, what this engine was built with, and what the layers really apply must be one."""
        mine = self._lora
        assert mine is not None
        if sent is None or (sent.rank, sent.alpha, sent.expected_modules, set(sent.targets)) != (
            mine.rank,
            mine.alpha,
            mine.expected_modules,
            set(mine.targets),
        ):
            raise WeightSyncError(f"the weight update is for {sent}, the rollout engine 'native' holds {mine}")
        if modules != mine.expected_modules:
            raise WeightSyncError(f"the weight update binds {modules} LoRA modules, expected {mine.expected_modules}")
        verify_lora(self._module, sent)

    def _prove(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The checksums of `tensors` were verified on arrival, so bit-equality with them proves what is now held."""
        own = self._tensors()
        for name, tensor in tensors.items():
            if not torch.equal(own[name].detach().to(tensor.device), tensor):
                raise WeightSyncError(f"after the weight update '{name}' does not hold what was sent (NaN, or lost)")
