"""Checks the arguments of `Table.create`: columns that fit their roles, and an existing table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tablekeeper.config.concurrency_settings import ConcurrencySettings
from tablekeeper.config.java_keys import Claim
from tablekeeper.config.options import Options
from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.config.table_properties import new_table_properties
from tablekeeper.config.write_settings import IndexKind, WriteSettings
from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_type
from tablekeeper.record.evolution import storable_schema
from tablekeeper.table.arguments import checked_text
from tablekeeper.table.claims import claimed_options, claimed_text, field_names, understood
from tablekeeper.timeline.properties_file import PROPERTIES_FILE
from tablekeeper.write.context import avro_schema_json

__all__ = ["NewTable", "column_names", "plan_table", "refuse_other_table", "refuse_unfit_columns"]

_TYPE = "mor"


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that can be made: its properties, and the options that its writers get."""

    config: TableConfig
    properties: Mapping[str, str]
    options: Options


def plan_table(
    *,
    name: str | None,
    schema: pa.Schema,
    key: str | Sequence[str] | None,
    partition_by: str | Sequence[str] | None,
    ordering: str | Sequence[str] | None,
    table_type: str | None,
    options: Mapping[str, object] | None,
) -> NewTable:
    """The table to create. Arguments that are None are taken from Java's settings among the options."""
    given = claimed_options(options)
    claims = given.claims
    roles = {
        role: column_names(role, value if value is not None else _claimed_names(claims, claim))
        for role, value, claim in (
            ("key", key, Claim.KEY),
            ("partition_by", partition_by, Claim.PARTITION_BY),
            ("ordering", ordering, Claim.ORDERING),
        )
    }
    named = checked_text("name", name if name is not None else claimed_text(claims, Claim.NAME) or "")
    kind = table_type if table_type is not None else claimed_text(claims, Claim.TABLE_TYPE) or _TYPE
    stored = storable_schema(schema)
    refuse_unfit_columns(stored, **roles)
    settings = WriteSettings.of_table(given.given, key_fields=tuple(roles["key"]))
    properties = new_table_properties(
        name=named,
        table_type=checked_text("table_type", kind),
        keys=roles["key"],
        partitions=roles["partition_by"],
        ordering=roles["ordering"],
        avro_schema=avro_schema_json(stored, table=named),
        options=given,
    )
    config = parse_table_config(properties, file=PROPERTIES_FILE)
    ConcurrencySettings.from_options(given.given).refuse_unfit_table(
        table=named, is_mor=config.is_mor, has_buckets=settings.index is IndexKind.BUCKET
    )
    return NewTable(config, properties, understood(given, config))


def _claimed_names(claims: Mapping[str, str], claim: Claim) -> list[str] | None:
    text = claimed_text(claims, claim)
    return None if text is None else field_names(text)


def column_names(role: str, value: str | Sequence[str] | None) -> list[str]:
    """The names given for a role: one, several or none."""
    if value is None:
        return []
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else None
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise InvalidRequestError(f"{role}={value!r}: give the name of a column, or a list of names.")
    return names


def refuse_other_table(there: TableConfig, *, wanted: TableConfig, path: str) -> None:
    """Raise `InvalidRequestError` if the existing table differs from the requested one."""
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
