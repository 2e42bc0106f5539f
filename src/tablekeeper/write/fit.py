"""Whether rows fit a table: they have the columns that it lives by, and its schema can take theirs in.

Keys and partition paths are made of the text of values. A column that they are made of may therefore get
another type only if the text of every value stays the same; otherwise rows that are there would never be found
again, and a second row with the same key would join them.
"""

from __future__ import annotations

import pyarrow as pa

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Operation
from tablekeeper.record.evolution import TypeChange, plan_evolution

__all__ = ["schema_after"]


def schema_after(
    config: TableConfig,
    table: pa.Schema,
    *,
    operation: Operation,
    incoming: pa.Schema,
    widens_to_string: bool = False,
) -> pa.Schema:
    """The table's schema once rows of schema `incoming` are written; refuses rows that do not fit.

    Number columns become strings with `widens_to_string` only, and those that the table lives by never.
    """
    identity = [*config.key_fields, *config.partition_columns]
    needed = identity if operation is Operation.DELETE else [*identity, *config.ordering_fields]
    missing = [name for name in dict.fromkeys(needed) if _top(name, incoming) not in incoming.names]
    if missing:
        raise InvalidRequestError(
            f"the rows have no column {', '.join(missing)}, which table {config.name} needs for its keys, partitions "
            f"or ordering. They have {', '.join(incoming.names)}."
        )
    if operation is Operation.DELETE:
        return table
    lived_by = {_top(name, table) for name in (*identity, *config.ordering_fields)}
    evolution = plan_evolution(table, incoming, widens_to_string=widens_to_string, never_strings=lived_by)
    for change in evolution.widened:
        if _top(change.column, table) in {_top(name, table) for name in identity} and not _keeps_text(change):
            raise InvalidRequestError(
                f"column {change.column}: table has {change.before}, data has {change.after}. The column is part of "
                "the keys or partitions, and the rows that are there would not be found under the new type: "
                "cast the data to the table's type."
            )
    return evolution.schema


def _top(path: str, schema: pa.Schema) -> str:
    return path if path in schema.names else path.split(".", maxsplit=1)[0]


def _keeps_text(change: TypeChange) -> bool:
    before, after = change.before, change.after
    if pa.types.is_integer(before) and pa.types.is_integer(after):
        return True
    return bool(pa.types.is_decimal(before) and pa.types.is_decimal(after) and before.scale == after.scale)
