"""Structured Streaming: hand every micro-batch of a query to a function, with Spark's checkpoint behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from tablekeeper.engine.protocol import Frame
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["start_query"]


def start_query(
    frame: Frame,
    write_batch: Callable[[Frame, int], None],
    *,
    checkpoint: str,
    trigger: str | Mapping[str, Any] | None,
    query_name: str | None,
    output_mode: str,
) -> StreamingQuery:
    """Start the query. `trigger` is a processing time (`"10 seconds"`) or arguments of Spark's `trigger`."""
    if not getattr(frame, "isStreaming", False):
        raise InvalidRequestError(
            "write_stream takes a streaming DataFrame, one that comes from spark.readStream. "
            "Write this one with upsert or insert."
        )
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedFeatureError(
            "write_stream does not work over Spark Connect, where batches are handled in another process. "
            "Use a classic Spark session."
        )
    writer = frame.writeStream.outputMode(output_mode).option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**({"processingTime": trigger} if isinstance(trigger, str) else dict(trigger)))
    query: StreamingQuery = writer.foreachBatch(write_batch).start()
    return query
