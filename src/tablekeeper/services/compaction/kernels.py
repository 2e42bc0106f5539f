"""The kernel of compaction: one slice becomes the next base file of its file group.

The rows are those that a snapshot read of the slice gives, by the same code. Each keeps its commit time, sequence
number and key; only the partition and the file name are written anew. The file has the table's latest schema. A slice
whose rows were all deleted becomes a file without rows, as in Java: without it the slice would still be read.

The file is written one row group at a time, so that memory is bounded by a row group and the slice's changes; changes
that take more than the task's share of memory are merged on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tablekeeper.model import FileSlice
from tablekeeper.read.slice_rows import SliceMerge, SliceTask
from tablekeeper.write.base_files import BaseFileWriter, holds_nan, is_known_free_of_nan
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile

__all__ = ["CompactionTask", "compact_slice"]

# Of the bytes that a task may hold, what logs take as they are stored, packed.
_LOG_SHARE = 2


@dataclass(frozen=True)
class CompactionTask:
    """Rewrite one slice. `number` goes into the name of the new file."""

    context: WriteContext
    file_slice: FileSlice
    number: int


def compact_slice(task: CompactionTask) -> WrittenFile:
    """Kernel: write the next base file of the slice's file group."""
    context, file_slice, base = task.context, task.file_slice, task.file_slice.base
    _, merge = context.runtime.threads.together(context.check, lambda: SliceMerge(_read_task(task)))
    with BaseFileWriter(
        context,
        file_slice.group,
        task=task.number,
        replaces=base.name if base is not None else None,
        expected_rows=merge.most_rows,
        keeps_commit_times=True,
        is_free_of_nan=is_known_free_of_nan(merge.base_metadata) and not any(map(holds_nan, merge.changed_rows())),
    ) as writer:
        for rows in merge.rows():
            task.context.check()
            writer.write(rows)
        return writer.close(
            inserts=merge.added,
            updates=merge.updated,
            deletes=merge.removed,
            previous_commit=base.instant.value if base is not None else "null",
        )


def _read_task(task: CompactionTask) -> SliceTask:
    context = task.context
    kept = context.rewritten_schema
    memory_bytes = context.within_memory().settings.task_memory_bytes
    return replace(
        context.slice_task(task.file_slice, kept),
        schema=kept,
        verifies_pages=True,
        log_bytes=max(1, memory_bytes // _LOG_SHARE),
    )
