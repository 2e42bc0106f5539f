"""A slice that was compacted, or whose logs were, has the rows that a read gave before: for slices of any content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.format.log_blocks import HeaderKey, decode_blocks
from tablekeeper.model import BaseFile, FileSlice, LogFile, RequestedTime
from tablekeeper.read.slice_rows import SliceTask, read_slice
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.services.compaction.kernels import CompactionTask, compact_slice
from tablekeeper.services.log_compaction.kernels import LogCompactionTask, compact_logs
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile
from tests.property.test_merge_slices import GROUP, SliceWriter, as_stored
from tests.support.merge_model import TYPES, Case, cases, model
from tests.support.write_context import make_context

_KEY = KeySpec(("row",), composite=False)
_NAMES = [(), *((name,) for name in TYPES), ("int64", "string"), ("date", "timestamp")]


class World:
    """A slice in a store of its own."""

    def __init__(self, case: Case, writer: SliceWriter, file_slice: FileSlice) -> None:
        self.case = case
        self.writer = writer
        self.slice = file_slice

    def context(self, instant: str) -> WriteContext:
        plain = pa.schema([field for field in self.case.schema if field.name != KEY_COLUMN])
        store = StorageHandle(self.writer.storage)
        return make_context(schema=plain, store=store, key=_KEY, rule=self.case.rule, instant=instant)

    def read(self, file_slice: FileSlice) -> list[tuple[str, int]]:
        task = SliceTask(
            store=StorageHandle(self.writer.storage),
            file_slice=file_slice,
            schema=self.writer.schema,
            output=self.writer.schema,
            rule=self.case.rule,
            key=_KEY,
            runtime=SYSTEM_RUNTIME,
        )
        rows = [row for batch in read_slice(task) for row in batch.to_pylist()]
        assert all(row["tags"] == [str(row["row"])] for row in rows)
        return sorted((row[KEY_COLUMN], row["row"]) for row in rows)

    def compact(self, file_slice: FileSlice, instant: str) -> tuple[WrittenFile, FileSlice]:
        context = self.context(instant)
        written = compact_slice(CompactionTask(context, file_slice, 0))
        name = decode_base_name(written.stat.file_name)
        assert name is not None
        assert name.instant == instant
        base = BaseFile(GROUP, RequestedTime(instant), name.write_token, written.stat.file_name, written.stat.size)
        return written, FileSlice(GROUP, base.instant, base)

    def compact_logs(self, file_slice: FileSlice, instant: str) -> LogFile | None:
        context = self.context(instant)
        written = compact_logs(LogCompactionTask(context, file_slice, 0))
        if not written:
            return None
        (file,) = written
        name = decode_log_name(file.stat.file_name)
        assert name is not None
        return LogFile(
            GROUP,
            RequestedTime(instant),
            name.version,
            name.write_token,
            file.stat.file_name,
            file.stat.size,
        )


@contextmanager
def world(data: st.DataObject, names: tuple[str, ...]) -> Iterator[World]:
    case = as_stored(data.draw(cases(names)))
    count = len(case.blocks)
    formats = data.draw(st.lists(st.sampled_from(["avro", "parquet"]), min_size=count, max_size=count))
    writer = SliceWriter(case)
    try:
        yield World(case, writer, writer.write(formats, list(range(count))))
    finally:
        writer.forget()


@pytest.mark.parametrize("names", _NAMES, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_compacted_slice_has_the_rows_that_a_read_gave_before(names: tuple[str, ...], data: st.DataObject) -> None:
    with world(data, names) as w:
        expected = model(w.case)
        written, compacted = w.compact(w.slice, "20240101000001000")
        assert w.read(compacted) == expected
        before = [change for group in w.case.base for change in group]
        stat = written.stat
        assert stat.writes == len(expected)
        assert len(before) + stat.inserts - stat.deletes == len(expected)
        assert stat.previous_base_file == ("base.parquet" if w.slice.base is not None else None)


@pytest.mark.parametrize("names", _NAMES, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_merged_logs_read_as_the_originals_did_whatever_lies_below_and_above_them(
    names: tuple[str, ...], data: st.DataObject
) -> None:
    with world(data, names) as w:
        expected = model(w.case)
        planned = data.draw(st.integers(0, len(w.slice.logs)))
        first = w.compact_logs(replace(w.slice, logs=w.slice.logs[:planned]), "20240101000001000")
        if first is None:
            assert not any(w.case.blocks[:planned])
            return
        once = replace(w.slice, logs=(*w.slice.logs, first))
        assert w.read(once) == expected
        # What is merged a second time names the merged blocks, not the originals.
        second = w.compact_logs(once, "20240101000002000")
        assert second is not None
        twice = replace(w.slice, logs=(*once.logs, second))
        assert w.read(twice) == expected
        assert w.read(w.compact(twice, "20240101000003000")[1]) == expected
        headers = [b.header for b in decode_blocks(w.writer.storage.read(second.path), file=second.path)]
        times = {header[HeaderKey.COMPACTED_BLOCK_TIMES] for header in headers}
        assert times == {",".join(["20240101000001000", *(log.instant.value for log in w.slice.logs[planned:])])}
        # A compaction took the originals: what was merged of them counts for nothing on top of it.
        rest = tuple(log for log in w.slice.logs[planned:])
        _, base = w.compact(replace(w.slice, logs=w.slice.logs[:planned]), "20240101000000100")
        assert w.read(replace(base, logs=(*rest, first))) == w.read(replace(base, logs=rest))
