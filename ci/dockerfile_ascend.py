"""What Dockerfile.ascend must keep: every generation of the device with its base and build flags, chosen by SOC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ci.dockerfile import Dockerfile, Stage, commands, expand

ENV_SCRIPT = "dockerfiles/ascend-env.sh"
SOURCED = ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/nnal/atb/set_env.sh")
RUN_TIME_OFF = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "torch would not load torch-npu at run time",
    "VLLM_BATCH_INVARIANT": "every run would be in batch-invariant mode",
}
"""Variables of single build steps -> what happens if the image keeps them."""


@dataclass(frozen=True)
class Base:
    """What the device's tables say of a generation: base image with its tag, SOC_VERSION, batch-invariant operators."""

    image: str
    soc_version: str
    batch_invariant: bool


def ascend(file: Dockerfile, wanted: Mapping[str, Base], script: str, version: str) -> Iterator[str]:
    """One base stage for each generation, chosen by the argument SOC alone, with the generation's build flags.

    Args:
        wanted: generation -> what it must be built from.
        script: text of the script that sources CANN's variables.
        version: pinned, of vllm-ascend; ends with the first digits of the commit it is built from.
    """
    bases = {stage.name.removeprefix("base-"): stage for stage in file.stages if stage.name.startswith("base-")}
    for name in sorted({*wanted, *bases}):
        if name not in wanted:
            yield f"stage base-{name}: the device has no generation '{name}'"
        elif name not in bases:
            yield f"generation '{name}' has no stage base-{name}"
        else:
            yield from _generation(file, name, bases[name], wanted[name])
    if file.final.image not in ("base-${SOC}", "base-$SOC"):
        yield f"line {file.final.line}: the image must be FROM base-${{SOC}}, not {file.final.image}"
    if "SOC" not in file.args or (file.args["SOC"] is not None and file.args["SOC"] not in wanted):
        yield "ARG SOC must stand before the first FROM, without a default or with one of the generations"
    yield from (f"{ENV_SCRIPT} does not source {path}" for path in SOURCED if f"source {path}\n" not in script)
    yield from _build_steps(file.final)
    commit = file.final.settings("ARG").get("VLLM_ASCEND_COMMIT", "")
    if file.final.settings("ARG").get("VLLM_ASCEND_VERSION") != version or not commit.startswith(
        version.rpartition("+g")[2]
    ):
        yield f"VLLM_ASCEND_VERSION and VLLM_ASCEND_COMMIT must be those of the pin vllm-ascend=={version}"


def _generation(file: Dockerfile, name: str, stage: Stage, wanted: Base) -> Iterator[str]:
    image = expand(stage.image, {key: value for key, value in file.args.items() if value is not None})
    settings = stage.settings("ENV")
    if image.partition("@")[0] != wanted.image:
        yield f"line {stage.line}: the base of '{name}' is {image}, not {wanted.image}"
    if settings.get("SOC_VERSION") != wanted.soc_version:
        yield f"base-{name}: SOC_VERSION must be {wanted.soc_version}"
    if settings.get("BATCH_INVARIANT") != str(int(wanted.batch_invariant)):
        yield f"base-{name}: BATCH_INVARIANT must be {int(wanted.batch_invariant)}"


def _build_steps(stage: Stage) -> Iterator[str]:
    kept = stage.settings("ENV")
    yield from (f"ENV {name}: {outcome}" for name, outcome in RUN_TIME_OFF.items() if name in kept)
    compiled = False
    for one in stage.each("RUN"):
        words = {word for command in commands(one) for word in command}
        if "--no-build-isolation" in words and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" not in words:
            yield f"line {one.line}: a step that imports torch needs TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        compiled |= bool(words & {"VLLM_BATCH_INVARIANT=${BATCH_INVARIANT}", "VLLM_BATCH_INVARIANT=$BATCH_INVARIANT"})
    if not compiled:
        yield "no step compiles with VLLM_BATCH_INVARIANT=${BATCH_INVARIANT}"
    for one in stage.each("ENTRYPOINT", "HEALTHCHECK"):
        if '"ascend-env"' not in one.value:
            yield f"line {one.line}: {one.keyword} must run through ascend-env, which sets CANN's variables"
