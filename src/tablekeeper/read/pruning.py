"""Which directories of a table a query has to look into.

A partition path holds the text of the partition columns, so that a condition on them rules out partitions by
their path, and whole directories on the way to them before they are listed. A value may hold `/` itself (unless
paths are URL-encoded), and then a directory is only the beginning of it: such a directory stands for
all values that begin with its name.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tablekeeper.record.partition_paths import PartitionSpec, prunable_values
from tablekeeper.record.predicate import ColumnRange, Predicate

__all__ = ["PartitionPruner"]

_NULL_PREFIX = "__HIVE_DEFAULT_PARTITION__"
# The character after `/`: everything that begins with `a/` is smaller than `a0`.
_AFTER_SLASH = "0"


@dataclass(frozen=True)
class PartitionPruner:
    """A condition as a filter of paths. `schema` has the partition columns in their types."""

    predicate: Predicate
    spec: PartitionSpec
    schema: pa.Schema

    def may_match(self, partition: str) -> bool:
        """False only if no row of the partition matches."""
        return self.predicate.may_match_partition(prunable_values(partition, self.spec), self.schema)

    def may_lead(self, directory: str) -> bool:
        """False only if no row of a partition in this directory, at any depth, matches; nor of the directory itself."""
        exact: dict[str, str | None] = {}
        beginning: dict[str, ColumnRange] = {}
        for field, segment in zip(self.spec.fields, directory.split("/"), strict=False):
            text = segment.removeprefix(f"{field.name}=") if self.spec.hive_style else segment
            strange = self.spec.hive_style and text == segment
            if strange or field.kind != "simple" or self.spec.slash_separated_dates or text.startswith(_NULL_PREFIX):
                break
            if not self._is_whole(field.name):
                beginning[field.name] = ColumnRange(minimum=text, maximum=text + _AFTER_SLASH, null_count=0)
                break
            exact |= prunable_values(segment, PartitionSpec((field,), self.spec.hive_style, self.spec.url_encode))
        if beginning and not self.predicate.may_match(beginning):
            return False
        return self.predicate.may_match_partition(exact, self.schema)

    def _is_whole(self, column: str) -> bool:
        """Whether one directory holds the whole value of this column."""
        if self.spec.url_encode:
            return True
        position = self.schema.get_field_index(column)
        kind = self.schema.field(position).type if position >= 0 else pa.string()
        return not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))
