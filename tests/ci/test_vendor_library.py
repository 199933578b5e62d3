"""Reading names and signatures from the sources of packages."""

from __future__ import annotations

import pytest

from ci.vendor_contracts import operators, signature
from ci.vendor_contracts.usage import Call
from tests.ci.contract_trees import library, tree, verdict

PACKAGE = {
    "vllm/__init__.py": """
import typing
from vllm.core import *
from .core import run as renamed
if typing.TYPE_CHECKING:
    from vllm.lazy import Late
else:
    def __getattr__(name): ...
""",
    "vllm/core.py": """
import os
from enum import Enum
from dataclasses import dataclass
try:
    from vllm.gone import fast
except ImportError:
    fast = None
def run(prompt: str, *, n: int = os.cpu_count(), **extra) -> "Engine": ...
def old(a, b=1, /, c=2): ...
@typing.overload
def many(a: int): ...
def many(a, b): ...
class Base:
    limit: int = 3
    def stop(self, wait=True): ...
    @property
    def state(self): ...
class Engine(Base):
    def __init__(self, model, *, dtype="auto"):
        self.pool: dict[int, str] = {}
    @staticmethod
    def shared() -> "Engine": ...
    @classmethod
    def make(cls, path): ...
@dataclass
class Config:
    name: str
    size: int = 1
class Wide(Config):
    pass
class Colour(Enum):
    RED = 1
class Switch:
    def __getattr__(self, name):
        if name in ("fast", "exact"):
            return 1
switch = Switch()
""",
    "vllm/lazy.py": "class Late: ...",
    "vllm/sub/__init__.py": "",
    "vllm/sub/deep.py": "from ..core import Engine as Again",
}


@pytest.mark.parametrize(
    ("name", "call", "outcome", "says"),
    [
        ("vllm.run", Call(1, ("n", "anything")), "agrees", ""),
        ("vllm.run", Call(2), "drift", "too many positional"),
        ("vllm.renamed", Call(0), "drift", "missing a required argument: 'prompt'"),
        ("vllm.renamed", Call(0, (), True), "agrees", ""),
        ("vllm.core.old", Call(1, ("c",)), "agrees", ""),
        ("vllm.core.old", Call(1, ("b",)), "drift", "'b'"),
        ("vllm.core.many", Call(1), "drift", "missing a required argument: 'b'"),
        ("vllm.Engine", Call(1, ("dtype",)), "agrees", ""),
        ("vllm.Engine", Call(1, ("device",)), "drift", "unexpected keyword argument 'device'"),
        ("vllm.Engine.stop", None, "agrees", ""),
        ("vllm.Engine.shared().stop", Call(0, ("wait",)), "agrees", ""),
        ("vllm.Engine.shared().halt", None, "drift", "has no 'halt'"),
        ("vllm.Engine.make", Call(1), "agrees", ""),
        ("vllm.run().stop", Call(2), "drift", "too many positional"),
        ("vllm.Engine().state", None, "agrees", ""),
        ("vllm.Engine().state.more", None, "unknown", "does not say what"),
        ("vllm.Engine().pool.values", None, "agrees", ""),
        ("vllm.Config", Call(0, ("name", "size")), "agrees", ""),
        ("vllm.Config", Call(0, ("size",)), "drift", "missing"),
        ("vllm.Wide", Call(0, ("name",)), "agrees", ""),
        ("vllm.core.Colour.RED", None, "agrees", ""),
        ("vllm.core.Colour.BLUE", None, "drift", "has no 'BLUE'"),
        ("vllm.core.Colour", Call(1), "agrees", ""),
        ("vllm.core.switch.exact", None, "agrees", ""),
        ("vllm.core.switch.quick", None, "drift", "has no 'quick'"),
        ("vllm.core.fast", None, "agrees", ""),
        ("vllm.core.fast", Call(0), "unknown", "does not say how"),
        ("vllm.core.gone", None, "drift", "vllm.core has no 'gone'"),
        ("vllm.Late", None, "agrees", ""),
        ("vllm.Later", None, "unknown", "makes names when they are asked for"),
        ("vllm.sub.deep.Again.shared", Call(0), "agrees", ""),
        ("vllm.sub.shallow.x", None, "drift", "vllm.sub has no 'shallow'"),
        ("nobody.x", None, "drift", "no module of 'nobody.x' exists"),
    ],
)
def test_names_and_calls(name: str, call: Call | None, outcome: str, says: str) -> None:
    found = verdict(PACKAGE, name, call)
    assert (found.outcome, says in found.reason) == (outcome, True), found


@pytest.mark.parametrize(
    ("before", "after", "name", "call"),
    [
        ("def f(a, b=1): ...", "def f(a): ...", "vllm_ascend.f", Call(1, ("b",))),
        ("def f(a): ...", "def f(a, b): ...", "vllm_ascend.f", Call(1)),
        ("def f(a): ...", "def f(b): ...", "vllm_ascend.f", Call(0, ("a",))),
        ("def f(a): ...", "def f(*, a): ...", "vllm_ascend.f", Call(1)),
        ("def f(): ...", "", "vllm_ascend.f", Call(0)),
        ("class C:\n def f(self): ...", "class C: ...", "vllm_ascend.C.f", None),
    ],
)
def test_every_change_that_breaks_a_call_is_drift(before: str, after: str, name: str, call: Call | None) -> None:
    assert verdict({"vllm_ascend/__init__.py": before}, name, call).outcome == "agrees"
    assert verdict({"vllm_ascend/__init__.py": after}, name, call).outcome == "drift"


def test_a_module_hooked_into_another_package() -> None:
    files = {"torch_npu/__init__.py": "", "torch_npu/npu/__init__.py": "def f(): ..."}
    for name in ("torch.npu.f", "torch_npu.npu.f"):
        assert verdict(files, name, Call(0), aliases={"torch.npu": "torch_npu.npu"}).outcome == "agrees"
        assert verdict(files, name, Call(1), aliases={"torch.npu": "torch_npu.npu"}).outcome == "drift"


def test_replaced_bases_that_are_elsewhere_leave_a_class_open() -> None:
    files = {"vllm/__init__.py": "from elsewhere import B\nclass C(B):\n  def f(self): ..."}
    assert verdict(files, "vllm.C.f", Call(0)).outcome == "agrees"
    assert verdict(files, "vllm.C.g", None).outcome == "unknown"
    assert verdict(files, "vllm.C", Call(0)).outcome == "unknown"


LIBRARY = (
    b"\x7fELF\0garbage() -> \xff\0"
    b'npu::op_one(Tensor query, Tensor(a!) out, int[]? sizes=[1, 2], *, float scale=1., str layout="BSH") -> Tensor\0'
    b"op_one(Tensor other) -> Tensor\0op_two.overload(Tensor a) -> ()\0op_two(Tensor a, SymInt[2] b) -> (Tensor, int)\0"
    b"std::map<int> what(x) -> y\0"
)


def test_operators_are_read_from_schemas_in_a_library() -> None:
    found = operators.operators(tree({"lib.so": LIBRARY}), "lib.so")
    assert found == {"op_one": "query, out, sizes=..., *, scale=..., layout=...", "op_two": "a, b"}
    source = library({"torch_npu/__init__.py": ""}, operators={"torch_npu": found})
    assert source.members("torch_npu")["op_two"].parameters == "a, b"
    with pytest.raises(ValueError, match=r"no operator schema in lib\.so"):
        operators.operators(tree({"lib.so": b"nothing\0"}), "lib.so")


@pytest.mark.parametrize("text", ["", "a", "a, b=1, /, c=2, *args, d, e=..., **more", "*, a", "*args, **kwargs"])
def test_signatures_survive_as_text(text: str) -> None:
    parsed = signature.parse(text)
    assert [str(p).replace("=Ellipsis", "").replace("=1", "") for p in parsed.parameters.values()] == [
        part.partition("=")[0] for part in text.replace("/, ", "").replace("*, ", "").split(", ") if part
    ]


def test_no_parameter_list() -> None:
    with pytest.raises(ValueError, match="no parameter list"):
        signature.parse("a b")


ACTOR = {
    "transfer_queue/__init__.py": """
import ray
@ray.remote(num_cpus=1)
class Unit:
    def __init__(self, config): ...
    def store(self, name, *, wait=True): ...
class Plain:
    def __init__(self): ...
"""
}


@pytest.mark.parametrize(
    ("name", "call", "outcome", "says"),
    [
        ("transfer_queue.Unit.options", Call(0, ("name", "num_cpus")), "agrees", ""),
        ("transfer_queue.Unit.remote", Call(0, ("config",)), "agrees", ""),
        ("transfer_queue.Unit.options().remote", Call(0, ("settings",)), "drift", "'config'"),
        ("transfer_queue.Unit.options().remote().store.remote", Call(1, ("wait",)), "agrees", ""),
        ("transfer_queue.Unit.remote().store.remote", Call(3), "drift", "too many positional"),
        ("transfer_queue.Unit.remote().drop.remote", Call(), "drift", "has no 'drop'"),
        ("transfer_queue.Plain.remote", Call(), "drift", "has no 'remote'"),
    ],
)
def test_actors_of_ray_are_called_through_their_handles(name: str, call: Call, outcome: str, says: str) -> None:
    found = verdict(ACTOR, name, call)
    assert found.outcome == outcome, found
    assert says in found.reason


TYPED = {
    "vllm/__init__.py": """
from typing import Optional
from .parts import Meta, Factory
class Client:
    def __init__(self, name): ...
    def start(self, kind):
        self.manager = Factory.create(kind)
        self.model = Model()
    def meta(self, keys) -> Meta: ...
def find(name) -> Optional[Meta]: ...
class Model:
    def __init__(self):
        self.layer = Layer()
        self.register_buffer("window", make())
    def __call__(self, x, *, mask=None) -> Meta: ...
class Layer:
    __call__: Callable[..., Any] = run
    weight: Tensor
""",
    "vllm/parts.py": """
class Meta:
    def select(self, fields) -> Meta: ...
class Manager:
    def put(self, data): ...
class Factory:
    @classmethod
    def create(cls, kind) -> Manager: ...
""",
}


@pytest.mark.parametrize(
    ("name", "call", "outcome", "says"),
    [
        ("vllm.Client().meta().select", Call(1), "agrees", ""),
        ("vllm.Client().meta().select().select", Call(2), "drift", "too many positional"),
        ("vllm.Client().meta().gone", None, "drift", "has no 'gone'"),
        ("vllm.Client().manager.put", Call(1), "agrees", ""),
        ("vllm.Client().manager.get", Call(), "drift", "has no 'get'"),
        ("vllm.find().select", Call(1), "agrees", ""),
        ("vllm.Model()", Call(1, ("mask",)), "agrees", ""),
        ("vllm.Model()", Call(1, ("weight",)), "drift", "unexpected keyword argument 'weight'"),
        ("vllm.Model()().select", Call(1), "unknown", "does not say what vllm.Model()() is"),
        ("vllm.Model().window.copy_", Call(1), "agrees", ""),
        ("vllm.Model().layer", Call(3), "agrees", ""),
        ("vllm.Model().layer.weight.mul_", Call(1), "agrees", ""),
        ("vllm.Model().layer.bias", None, "drift", "has no 'bias'"),
        ("vllm.Client()", Call(), "unknown", "does not say how"),
    ],
)
def test_what_methods_return_and_attributes_hold_is_followed(
    name: str, call: Call | None, outcome: str, says: str
) -> None:
    found = verdict(TYPED, name, call)
    assert found.outcome == outcome, found
    assert says in found.reason
