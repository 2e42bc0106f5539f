"""Indexes of the metadata table on request: building one from the rows that are there, and dropping one."""

__all__: list[str] = []
