"""What is read out of prompts."""

from __future__ import annotations

import re

QUOTED = re.compile(r'"([^"]+)"')
"""Text between double quotes: what a picture is to show."""
