"""Avro schemas of the table format, one record a file; a nested record is named, not repeated."""

__all__: list[str] = []
