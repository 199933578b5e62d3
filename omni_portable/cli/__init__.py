"""The `omni-portable` command. Importing it, `--help` and configuration errors load no torch."""

from omni_portable.cli.main import main

__all__ = ["main"]
