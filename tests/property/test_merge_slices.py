"""A slice read from its files gives what the rules say: base file in row groups, log files with blocks of all kinds.

The same cases as for the kernels alone, but written as Parquet, Avro and delete blocks, spread over log files.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.format.avro_arrow import arrow_to_avro_schema, with_meta_columns
from tablekeeper.format.avro_columnar import encode_avro_block_content
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_data import encode_parquet_block_content
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.read.slice_rows import SliceTask, read_slice
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.record.predicate import parse_predicate
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import MemoryStorage, forget_memory
from tablekeeper.storage.handle import StorageHandle
from tests.support.merge_model import TYPES, ZEROS, Case, Change, as_table, cases, model

GROUP = FileGroupId("", "a1b2c3d4-0-0")


def as_stored(case: Case) -> Case:
    """The case as it is after a round trip: deletes without a value, or with Java's mark for none, by commit time."""
    kinds = [case.schema.field(name).type for name in case.rule.ordering]

    def stored(change: Change) -> Change:
        if change.row is not None or change.by_commit_time or len(kinds) != 1:
            return change
        return replace(change, by_commit_time=change.order[0] in (None, ZEROS.get(kinds[0])))

    return replace(case, blocks=[[stored(change) for change in block] for block in case.blocks])


class SliceWriter:
    """Writes a case into a store, file by file."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._name = f"slices-{uuid4()}"
        self.storage = MemoryStorage(f"memory://{self._name}/table")
        plain = pa.schema([field for field in case.schema if field.name != KEY_COLUMN])
        self.schema = with_meta_columns(plain)
        self._avro = json.dumps(arrow_to_avro_schema(self.schema, record_name="r", namespace="n"))

    def forget(self) -> None:
        forget_memory(self._name)

    def write(self, formats: list[str], files: list[int]) -> FileSlice:
        instant = RequestedTime("20240101000000000")
        base = None
        if self._case.base:
            base = BaseFile(GROUP, instant, "0-0-0", "base.parquet", 1)
            with self.storage.open_output(base.path) as sink, pq.ParquetWriter(sink, self.schema) as writer:
                for group in self._case.base:
                    writer.write_table(self._rows(group))
        logs: dict[int, list[bytes]] = {}
        for number, block in enumerate(self._case.blocks):
            time = f"202401010000001{files[number]:02d}"
            logs.setdefault(files[number], []).append(self._block(block, formats[number], time))
        made = []
        for number, content in sorted(logs.items()):
            file = LogFile(GROUP, RequestedTime(f"202401010000001{number:02d}"), 1, "0-0-0", f"log{number}", 1)
            self.storage.put(file.path, b"".join(content))
            made.append(file)
        return FileSlice(GROUP, instant, base, tuple(made))

    def _rows(self, changes: list[Change]) -> pa.Table:
        return conform(as_table(changes, self._case.schema, self._case.rule.ordering), self.schema)

    def _block(self, block: list[Change], kind: str, instant: str) -> bytes:
        header = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: self._avro}
        if all(change.row is not None for change in block):
            rows = self._rows(block)
            if kind == "avro":
                return encode_block(
                    BlockType.AVRO_DATA, header, encode_avro_block_content(rows, json.loads(self._avro))
                )
            content = encode_parquet_block_content(rows, avro_schema_json=self._avro)
            return encode_block(BlockType.PARQUET_DATA, header, content)
        keys = pa.array([change.key for change in block])
        content = encode_deletes(keys, partition="", ordering=self._ordering(block))
        return encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: instant}, content)

    def _ordering(self, block: list[Change]) -> pa.Array | None:
        names = self._case.rule.ordering
        if not names:
            return None
        kinds = [self._case.schema.field(name).type for name in names]
        if len(names) == 1:
            return pa.array([None if c.by_commit_time else c.order[0] for c in block], kinds[0])
        fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
        values: list[Any] = [None if c.by_commit_time else dict(zip(names, c.order, strict=True)) for c in block]
        return pa.array(values, pa.struct(fields))


def read(writer: SliceWriter, case: Case, file_slice: FileSlice, where: str | None = None) -> list[tuple[str, int]]:
    task = SliceTask(
        store=StorageHandle(writer.storage),
        file_slice=file_slice,
        schema=writer.schema,
        output=pa.schema([writer.schema.field(KEY_COLUMN), writer.schema.field("row")]),
        rule=case.rule,
        key=KeySpec(("row",), composite=False),
        runtime=SYSTEM_RUNTIME,
        predicate=parse_predicate(where) if where else None,
    )
    batches = list(read_slice(task))
    return sorted((row[KEY_COLUMN], row["row"]) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize(
    "names", [(), *((name,) for name in TYPES), ("int64", "string"), ("date", "timestamp")], ids=str
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_slice_read_from_its_files_gives_what_the_rules_say(names: tuple[str, ...], data: st.DataObject) -> None:
    case = as_stored(data.draw(cases(names)))
    count = len(case.blocks)
    formats = data.draw(st.lists(st.sampled_from(["avro", "parquet"]), min_size=count, max_size=count))
    # Blocks in a row share a file; which of them do is drawn.
    steps = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    files = [sum(steps[: n + 1]) for n in range(count)]
    writer = SliceWriter(case)
    try:
        file_slice = writer.write(formats, files)
        expected = model(case)
        assert read(writer, case, file_slice) == expected
        limit = data.draw(st.integers(0, 12))
        wanted = [(key, row) for key, row in expected if row >= limit]
        assert read(writer, case, file_slice, where=f"row >= {limit}") == wanted
        assert read(writer, case, file_slice, where="_hoodie_record_key = 'a'") == [e for e in expected if e[0] == "a"]
    finally:
        writer.forget()
