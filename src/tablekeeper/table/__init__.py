"""The public door: `Table` composes everything below."""

from tablekeeper.table.table import Table

__all__ = ["Table"]
