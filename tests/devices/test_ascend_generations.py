"""Which Ascend generation a SoC number, a chip's name or an npu-smi record means, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from omni_devices.ascend import SPEC, generations, npu_smi
from omni_devices.ascend.facts import BASE_IMAGES, FACTS
from omni_devices.ascend.vllm_build import SOC_VERSIONS
from omni_portable.contracts.errors import DeviceError

LISTING = """\
\tTotal Count                    : 2

\tNPU ID                         : 0
\tProduct Name                   : IT21DMDA
\tChip Count                     : 1

\tNPU ID                         : 1
\tProduct Name                   : IT21DMDA
\tChip Count                     : 1
"""
CARD = """\
\tNPU ID                         : 0
\tProduct Name                   : IT21DMDA
\tModel                          : NA
\tManufacturer                   : Huawei
\tSoftware Version               : 25.5.1
\tFirmware Version               : 7.8.0.5.216
\tBoard ID                       : 0x65
\tChip Count                     : 1
"""
CHIPS = {
    "Ascend910B3": """\
\tNPU ID                         : 0
\tChip ID                        : 0
\tChip Type                      : Ascend
\tChip Name                      : 910B3
\tChip Version                   : V1
\tBoard ID                       : 0x65
""",
    "Ascend910_9392": """\
\tNPU ID                         : 0
\tNPU Name                       : 9392
\tChip ID                        : 0
\tChip Name                      : Ascend910
""",
    "Ascend310P3": """\
\tNPU ID                         : 0
\tChip ID                        : 0
\tChip Type                      : Ascend
\tChip Name                      : 310P3
""",
    "Ascend910B1": """\
\tNPU ID                         : 0
\tChip ID                        : 0
\tChip Name                      : A2G3
""",
}
CARD_950 = """\
NPU ID                         : 0
Product Name                   : A310-50-C00MM304A1
NPU Name                       : 9579
Chip Name                      : Ascend950PR
Chip Version                   : V100
Software Version               : 25.7.rc1.6
PCIe Bus Info                  : 0000:F1:00.0
Chip Count                     : 1
"""


class Smi:
    """Answers like npu-smi, and keeps what it was asked."""

    def __init__(self, card: str, chip: str = "", listing: str = LISTING) -> None:
        self.answers = {"-l": listing, "-i": card, "-c": chip}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, arguments: Sequence[str]) -> str:
        self.asked.append(tuple(arguments))
        return self.answers[next(flag for flag in ("-c", "-i", "-l") if flag in arguments)]


@pytest.mark.parametrize(
    ("numbers", "generation"),
    [(range(220, 226), "a2"), (range(250, 257), "a3"), ((260,), "a5")],
    ids=["a2", "a3", "a5"],
)
def test_numbers_of_the_generations(numbers: Sequence[int], generation: str) -> None:
    assert {generations.from_number(number) for number in numbers} == {generation}


@pytest.mark.parametrize(
    ("number", "says"),
    [
        *((number, "910.*no bfloat16") for number in range(100, 105)),
        *((number, "310P.*inference chip without bfloat16") for number in range(200, 206)),
        *((number, "310B.*edge chip") for number in range(240, 244)),
    ],
)
def test_chips_that_are_not_supported_are_named(number: int, says: str) -> None:
    with pytest.raises(DeviceError, match=rf"SoC version {number}: Ascend{says}") as caught:
        generations.from_number(number)
    assert [choice.split()[0] for choice in caught.value.choices] == ["ascend:a2", "ascend:a3", "ascend:a5"]


@pytest.mark.parametrize("number", [-1, 0, 99, 105, 206, 219, 226, 249, 257, 259, 261, 300])
def test_an_unknown_number_is_refused(number: int) -> None:
    with pytest.raises(DeviceError, match=rf"SoC version {number} and the name 'Ascend1000', which is unknown"):
        generations.from_number(number, "Ascend1000")
    with pytest.raises(DeviceError, match=rf"SoC version {number}, which is unknown"):
        generations.from_number(number)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        *((f"Ascend910B{kind}", "a2") for kind in ("1", "2", "2C", "3", "4", "4-1")),
        *((f"Ascend910_{kind}", "a3") for kind in (9362, 9363, 9372, 9381, 9382, 9391, 9392)),
        *((f"Ascend950{kind}", "a5") for kind in ("PR_950z", "PR_9579", "DT_950x", "DT_95A2")),
        ("Ascend95H", "a5"),
        ("Ascend910_9589", "a5"),
    ],
)
def test_names_of_the_generations(name: str, generation: str) -> None:
    assert generations.from_name(name) == generation
    assert generations.names_one(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Ascend310P3", "inference chip"),
        ("Ascend310B1", "edge chip"),
        ("Ascend910B", "first-generation"),
        ("Ascend910ProA", "first-generation"),
        ("Ascend910PremiumA", "first-generation"),
        ("Ascend1000", "unknown here"),
        ("", "unknown here"),
        ("NVIDIA H200", "unknown here"),
    ],
)
def test_a_name_that_is_not_supported_is_refused(name: str, says: str) -> None:
    with pytest.raises(DeviceError, match=rf"'{name}'.*{says}"):
        generations.from_name(name)
    assert not generations.names_one(name)


def test_every_supported_number_and_its_name_agree() -> None:
    supported = {f"Ascend{soc.name}": soc.generation for soc in generations.SOCS.values() if soc.generation}
    assert {name: generations.from_name(name) for name in supported} == supported
    for soc in generations.SOCS.values():
        if not soc.generation:
            with pytest.raises(DeviceError, match=soc.what):
                generations.from_name(f"Ascend{soc.name}")


def test_tables_cover_the_generations_of_the_spec() -> None:
    names = SPEC.capabilities["generations"]
    assert names == generations.NAMES
    for table in (generations.PRODUCTS, FACTS, BASE_IMAGES, SOC_VERSIONS):
        assert tuple(table) == names
    for generation, soc_version in SOC_VERSIONS.items():
        assert generations.from_name(soc_version.replace("ascend910b", "Ascend910B").replace("a", "A", 1)) == generation


def test_only_known_generations_may_be_named() -> None:
    generations.check("")
    generations.check("a5")
    with pytest.raises(DeviceError, match="no generation '310p'") as caught:
        generations.check("310p")
    assert caught.value.choices == generations.known()


def test_builds_of_vllm_ascend() -> None:
    assert [generations.from_build(kind) for kind in ("A2", "A3", "A5", "_310P", "")] == ["a2", "a3", "a5", "", ""]


@pytest.mark.parametrize("name", CHIPS)
def test_older_cards_name_their_chip_in_its_own_record(name: str) -> None:
    smi = Smi(CARD, CHIPS[name])
    assert npu_smi.board(smi) == npu_smi.Board(name, "25.5.1")
    board = ("info", "-t", "board", "-i", "0")
    assert smi.asked == [("info", "-l"), board, (*board, "-c", "0")]


def test_a_950_names_its_chip_in_the_cards_record() -> None:
    smi = Smi(CARD_950)
    assert npu_smi.board(smi) == npu_smi.Board("Ascend950PR_9579", "25.7.rc1.6")
    assert len(smi.asked) == 2
    assert npu_smi.fields(CARD_950)["PCIe Bus Info"] == "0000:F1:00.0"


@pytest.mark.parametrize(
    ("chip", "says"),
    [
        ("", "an empty record|Type"),
        ("\tChip Type : mcu\n\tChip Name : MCU\n", "Chip Type: mcu, Chip Name: MCU"),
        ("\tChip Type : Ascend\n", "Chip Type: Ascend"),
    ],
    ids=["empty", "mcu", "nameless"],
)
def test_a_record_without_a_chip_is_refused(chip: str, says: str) -> None:
    with pytest.raises(DeviceError, match=f"names no Ascend chip.*({says})") as caught:
        npu_smi.board(Smi("", chip))
    assert "device.name=ascend:a2" in str(caught.value)


def test_no_card_is_refused() -> None:
    with pytest.raises(DeviceError, match="lists no card"):
        npu_smi.board(Smi(CARD, listing="\tTotal Count : 0\n\tNPU ID : none\n"))


def test_npu_smi_is_a_program_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not npu_smi.installed()
    with pytest.raises(DeviceError, match=r"'npu-smi info -l' failed: .*No such file"):
        npu_smi.board()
    program = tmp_path / "npu-smi"
    program.write_text('#!/bin/sh\n[ "$2" = -l ] && echo "NPU ID : 4" || echo "Chip Name : Ascend910B$5"\n')
    program.chmod(0o755)
    assert npu_smi.installed()
    assert npu_smi.board().name == "Ascend910B4"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(DeviceError, match="exit status 3"):
        npu_smi.board()
