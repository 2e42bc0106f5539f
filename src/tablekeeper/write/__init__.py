"""Rows turned into files."""

__all__: list[str] = []
