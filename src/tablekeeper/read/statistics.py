"""Column statistics of Parquet row groups, in the form that predicates prune with."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.record.predicate import ColumnRange

__all__ = ["row_group_ranges"]


def row_group_ranges(metadata: pq.FileMetaData, group: int, schema: pa.Schema) -> dict[str, ColumnRange]:
    """What the footer knows of each top-level column of `schema` in one row group."""
    row_group = metadata.row_group(group)
    stored = metadata.schema.to_arrow_schema()
    ranges: dict[str, ColumnRange] = {}
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        name = column.path_in_schema
        if name not in schema.names or not column.is_stats_set:
            continue
        if stored.field(name).type != schema.field(name).type:
            # The bounds of a column that was widened since do not bound the widened values.
            continue
        statistics = column.statistics
        bounded = statistics.has_min_max
        ranges[name] = ColumnRange(
            minimum=statistics.min if bounded else None,
            maximum=statistics.max if bounded else None,
            null_count=statistics.null_count if statistics.has_null_count else None,
            value_count=row_group.num_rows,
        )
    return ranges
