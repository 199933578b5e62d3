"""Simulation: the real scheduling code of the modes, on a clock that jumps from event to event."""
