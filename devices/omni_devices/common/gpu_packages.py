"""What both vendors of GPUs pin alike, as data."""

from __future__ import annotations

from omni_portable.contracts.device import PackageNeed


def pip(constraints: str, requirement: str, *options: str) -> str:
    """The command that installs a requirement under a file of constraints."""
    return " ".join(("pip install", *options, f"'{requirement}'", "-c", constraints))


def shared(constraints: str) -> tuple[PackageNeed, ...]:
    """Packages that are the same whatever torch was built for."""

    def need(distribution: str, specifier: str, purpose: str, *, optional: bool = False) -> PackageNeed:
        return PackageNeed(distribution, specifier, purpose, pip(constraints, distribution + specifier), optional)

    return (
        need("diffusers", "==0.40.0", "the actor's diffusion models"),
        need("transformers", ">=5.13,<5.15", "text encoders and language models"),
        need("accelerate", "==1.12.0", "loading of weights"),
        need("peft", ">=0.21,<0.22", "LoRA"),
        need("vllm-omni", "==0.30.0", "rollout of diffusion and omni models", optional=True),
        need("ray", ">=2.60", "the 'ray' launcher", optional=True),
        need("TransferQueue", "==0.1.11", "the 'transferqueue' data plane", optional=True),
        need("tensordict", ">=0.15,<0.16", "the 'transferqueue' data plane", optional=True),
    )


def hub_kernels(constraints: str) -> PackageNeed:
    """Kernels fetched from the hub, at the version that vLLM-Omni pins."""
    install = pip(constraints, "kernels==0.16.1")
    return PackageNeed("kernels", "==0.16.1", "kernels fetched from the hub", install, optional=True)
