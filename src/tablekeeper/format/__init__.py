"""Bytes to values and back, without I/O."""

__all__: list[str] = []
