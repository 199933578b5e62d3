"""Execution modes: how the producer and the consumer of the loop share machine and time."""
