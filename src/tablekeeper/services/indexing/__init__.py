"""Indexes of the metadata table on request: building one from the existing rows, and dropping one."""

__all__: list[str] = []
