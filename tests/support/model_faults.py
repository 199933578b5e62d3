"""Model folders with a fault in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; the value 'absent' removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "absent"}))
