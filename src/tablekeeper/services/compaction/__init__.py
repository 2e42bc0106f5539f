"""Compaction: logs merged into base files."""

__all__: list[str] = []
