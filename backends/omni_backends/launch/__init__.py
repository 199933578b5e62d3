"""Launchers: where roles live."""
