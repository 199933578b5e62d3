"""Placement: what each execution mode and split of devices would take per prompt, from measured times."""
