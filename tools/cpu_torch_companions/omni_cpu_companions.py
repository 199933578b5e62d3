"""Lets a torchvision that was built for an accelerator be imported beside a CPU build of torch.

The package index offers no CPU build of torchvision. Its compiled library cannot be loaded beside a CPU torch, and its
Python part then fails at import, because it registers shape functions for two operators that nobody declared. This
module declares the two (`torch.library`, no implementation) just before torchvision is imported, and only where its own
library could not be loaded. What is pure Python in torchvision works then, such as transforms; an operator that is
called says that it is missing.

Nothing happens where torch was built for an accelerator, where torchvision's library loads, or until torchvision is
imported. `omni_cpu_companions.pth` beside this file calls :func:`install` when Python starts, in every process;
uninstalling the distribution removes both.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Operators whose shape functions torchvision registers at import."""
LIBRARY = "_C.so"
_declared: list[object] = []
"""Keeps the declarations alive for the life of the process."""


class _BeforeTorchvision:
    """Finds nothing by itself; looks on when torchvision is imported for the first time."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.origin is not None:
            declare_where_missing(Path(spec.origin).parent / LIBRARY)
        return None


def install() -> None:
    """Look on at the import of torchvision (once in a process)."""
    if "torchvision" in sys.modules or any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _BeforeTorchvision())  # type: ignore[arg-type]


def declare_where_missing(library: Path) -> bool:
    """Declare the operators beside a CPU torch that cannot load `library`; whether that was done."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    if torch.version.cuda is not None or torch.version.hip is not None or not library.is_file():
        return False
    try:
        torch.ops.load_library(library)
    except OSError:
        declaration = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            declaration.define(schema)
        _declared.append(declaration)
        return True
    return False
