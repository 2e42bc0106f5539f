"""Values as JSON for programs.

Numbers and booleans stay what they are; what JSON has no form for becomes text: times and dates in ISO format,
decimals with all digits, binary as Base64, not-a-number and the infinities by name. A map is an object if its keys are
texts, else a list of `{"key", "value"}` objects.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

__all__ = ["json_document", "json_rows", "plain_value"]


def json_document(value: Mapping[str, Any]) -> str:
    """One JSON object on one line. What would move the cursor of a terminal is escaped, as JSON allows for any text."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def json_rows(batch: pa.RecordBatch) -> Iterator[str]:
    """One JSON object a row, with all columns, in their order."""
    names = batch.schema.names
    columns = [
        [plain_value(field.type, value) for value in batch.column(index).to_pylist()]
        for index, field in enumerate(batch.schema)
    ]
    for row in zip(*columns, strict=True):
        yield json_document(dict(zip(names, row, strict=True)))


def plain_value(kind: pa.DataType, value: Any) -> Any:
    """`value` of an Arrow type as something that JSON has."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {field.name: plain_value(field.type, value[field.name]) for field in fields}
    if pa.types.is_map(kind):
        pairs = [(plain_value(kind.key_type, k), plain_value(kind.item_type, v)) for k, v in value]
        if pa.types.is_string(kind.key_type):
            return dict(pairs)
        return [{"key": key, "value": item} for key, item in pairs]
    if isinstance(value, list):
        return [plain_value(kind.value_type, item) for item in value]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value
