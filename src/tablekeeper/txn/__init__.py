"""Locks, heartbeats, markers, conflicts, and the commit door."""

__all__: list[str] = []
