"""The report of a run: one HTML file that needs nothing else. Loads without torch."""

from omni_portable.trainer.report.write import write_report

__all__ = ["write_report"]
