"""Rows of other libraries, through Arrow's C stream interface: pandas, polars, DuckDB, readers of any kind."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError

__all__ = ["is_arrow_stream", "open_arrow_stream"]

# How pandas names the columns that it makes of an index without a name; nobody's table wants them.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def is_arrow_stream(source: Any) -> bool:
    """Whether `source` can be drawn as Arrow batches."""
    return hasattr(source, "__arrow_c_stream__")


def open_arrow_stream(source: Any) -> pa.RecordBatchReader:
    """A reader of the rows of `source`, to be drawn once."""
    try:
        reader = pa.RecordBatchReader.from_stream(source)
    except Exception as error:
        # Whatever another library raises while it exports its rows: the caller's rows are at fault, or their library.
        raise InvalidRequestError(
            f"the rows of this {type(source).__name__} cannot be read as Arrow data: {error}. "
            "Convert them to a pyarrow.Table first."
        ) from error
    kept = [field.name for field in reader.schema if not _PANDAS_INDEX.fullmatch(field.name)]
    if len(kept) == len(reader.schema):
        return reader
    batches = (batch.select(kept) for batch in reader)
    schema = pa.schema([reader.schema.field(name) for name in kept])
    return pa.RecordBatchReader.from_batches(schema, batches)
