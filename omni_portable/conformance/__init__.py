"""Conformance: checks whose figures are recorded with their thresholds and provenance."""
