"""Writes log files: one per file group and commit, with a data block, a delete block, or both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

from tablekeeper.config.write_settings import LogBlockFormat
from tablekeeper.format.avro_columnar import encode_avro_block_content
from tablekeeper.format.column_stats import column_ranges_from_table, empty_column_range
from tablekeeper.format.data_files import encode_log_name
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_data import encode_parquet_block_content
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.model import FileGroupId, FileSlice, WriteStat, join_path
from tablekeeper.txn.markers import MarkerKind, create_marker
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile
from tablekeeper.write.staging import without_deleted

__all__ = ["LOG_VERSION", "encode_data_block", "log_column_ranges", "log_name", "publish_log", "write_log_file"]

LOG_VERSION = 1
"""A write has one log file per file group, so its version is the first."""


def log_name(context: WriteContext, group: FileGroupId, *, task: int, version: int = LOG_VERSION) -> str:
    """The name of this write's log file in the file group."""
    return encode_log_name(
        file_id=group.file_id,
        instant=context.instant,
        version=version,
        write_token=context.write_token(task),
    )


def write_log_file(
    context: WriteContext,
    group: FileGroupId,
    *,
    file_slice: FileSlice | None,
    name: str,
    rows: pa.Table | None,
    deletes: pa.Array | None,
) -> WrittenFile:
    """Publish a log file with `rows` (of the context's file schema) and deletes by commit time of `deletes`.

    Without a slice below it, it is the first file of its group.
    """
    content = b""
    if rows is not None and rows.num_rows:
        content += encode_data_block(context, rows)
    if deletes is not None and len(deletes):
        header = {HeaderKey.INSTANT_TIME: context.instant}
        body = encode_deletes(deletes, partition=group.partition, ordering=None)
        content += encode_block(BlockType.DELETE, header, body)
    path = publish_log(context, group, name, content)
    written = rows.num_rows if rows is not None else 0
    live = without_deleted(rows).num_rows if rows is not None else 0
    inserts = live if file_slice is None else 0
    deleted = written - live + (len(deletes) if deletes is not None else 0)
    stat = WriteStat(
        group=group,
        path=path,
        size=len(content),
        writes=written,
        inserts=inserts,
        updates=live - inserts,
        deletes=deleted,
        previous_commit=context.instant,
        log_version=LOG_VERSION,
        base_file=file_slice.base.name if file_slice is not None and file_slice.base is not None else "",
    )
    return WrittenFile(stat, log_column_ranges(context, rows))


def publish_log(context: WriteContext, group: FileGroupId, name: str, content: bytes) -> str:
    """Announce a log file of the group and make it visible; its path."""
    storage, path = context.store.storage, join_path(group.partition, name)
    create_marker(
        storage,
        instant=context.instant,
        partition=group.partition,
        file_name=name,
        kind=MarkerKind.CREATE,
        scope=context.scope,
    )
    with context.publishing(path):
        storage.put(path, content, scope=context.scope)
    return path


def log_column_ranges(context: WriteContext, rows: pa.Table | None) -> tuple[ColumnRange, ...]:
    """Ranges of the columns that the metadata table indexes; empty for a log that only has deletes."""
    if rows is None or not rows.num_rows:
        return tuple(empty_column_range(column) for column in context.stats_columns)
    return tuple(column_ranges_from_table(rows, columns=context.stats_columns).values())


def encode_data_block(
    context: WriteContext, rows: pa.Table, *, header: Mapping[HeaderKey, str] = MappingProxyType({})
) -> bytes:
    """A data block of `rows` (of the context's file schema) in the format of the settings."""
    headers = {**header, HeaderKey.INSTANT_TIME: context.instant, HeaderKey.SCHEMA: context.avro_schema}
    if context.settings.log_block is LogBlockFormat.AVRO:
        body = encode_avro_block_content(rows, json.loads(context.avro_schema))
        return encode_block(BlockType.AVRO_DATA, headers, body)
    body = encode_parquet_block_content(rows, avro_schema_json=context.avro_schema)
    return encode_block(BlockType.PARQUET_DATA, headers, body)
