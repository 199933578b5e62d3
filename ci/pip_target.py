"""Runs pip as if on another machine and Python: ``python -m ci.pip_target MARKERS PIP-ARGUMENT ...``

pip's --platform and --python-version choose among wheels, but conditions such as `python_version >= "3.12"` or
`platform_machine == "aarch64"` in a package's requirements are still decided for the interpreter that runs pip. MARKERS
(a JSON object, e.g. {"python_version": "3.12", "platform_machine": "aarch64"}) replaces those values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """pip's exit status; 3 where this pip does not take its marker values from where they are replaced."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    wanted: dict[str, str] = json.loads(arguments[0])
    from pip._internal.cli.main import main as pip_main
    from pip._vendor.packaging import markers

    found = markers.default_environment()
    markers.default_environment = lambda: {**found, **wanted}  # type: ignore[typeddict-item]
    wrong = [name for name, value in wanted.items() if not markers.Marker(f'{name} == "{value}"').evaluate()]
    if wrong:
        print(f"this version of pip cannot be told {', '.join(wrong)}: use the version in constraints/cpu.txt")
        return 3
    return pip_main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
