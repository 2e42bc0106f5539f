"""Hudi's metadata table: a merge-on-read table below `.hoodie/metadata` that lists the files of the table around it."""

__all__: list[str] = []
