"""What `Table.create` is asked for, checked: columns that can play their roles, and a table that is there already."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_type

__all__ = ["column_names", "refuse_other_table", "refuse_unfit_columns"]


def column_names(role: str, value: str | Sequence[str] | None) -> list[str]:
    """The names given for a role: one, several or none."""
    if value is None:
        return []
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else None
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise InvalidRequestError(f"{role}={value!r}: give the name of a column, or a list of names.")
    return names


def refuse_other_table(there: TableConfig, *, wanted: TableConfig, path: str) -> None:
    """Raise `InvalidRequestError` if the table that is there is not what was asked for."""
    pairs = {
        "key": (there.key_fields, wanted.key_fields),
        "partition_by": (there.partition_columns, wanted.partition_columns),
        "ordering": (there.ordering_fields, wanted.ordering_fields),
        "table_type": ((there.table_type.value,), (wanted.table_type.value,)),
    }
    for role, (has, asked) in pairs.items():
        if has != asked:
            raise InvalidRequestError(
                f"there is a table at {path} already, with {role} {', '.join(has) or 'none'} and not "
                f"{', '.join(asked) or 'none'}. Open it with Table.open, or choose another path."
            )


def refuse_unfit_columns(schema: pa.Schema, **roles: list[str]) -> None:
    """Raise `InvalidRequestError` unless the schema has the columns, with values that fit their roles."""
    if not roles["key"]:
        raise InvalidRequestError("a table needs a key: pass key='…' with the column that identifies a row")
    for role, names in roles.items():
        for name in names:
            path = name.split(":")[0]
            column = path.split(".")[0]
            if column not in schema.names:
                raise InvalidRequestError(
                    f"{role}: the schema has no column {column!r}. It has {', '.join(schema.names)}."
                )
            kind = column_type(schema, path)
            if pa.types.is_nested(kind) or (role == "ordering" and path != column):
                what = f"is {kind}" if pa.types.is_nested(kind) else "lies inside of another one"
                raise InvalidRequestError(f"{role}: column {path} {what}. Choose a column with plain values.")
        if len(set(names)) < len(names):
            raise InvalidRequestError(f"{role}: a column is named twice in {', '.join(names)}.")
