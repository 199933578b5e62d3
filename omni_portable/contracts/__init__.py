"""The seams of Omni-Portable as protocols and frozen dataclasses; imports nothing of ours and loads without torch."""
