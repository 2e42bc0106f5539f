"""A stream into a table: every batch once, across stops, restarts and batches that Spark runs again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.errors import InvalidRequestError
from tablekeeper.storage import open_storage
from tablekeeper.table.streaming import BATCH_KEY, WRITER_KEY
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tests.support.table_builder import TRIPS

__all__: list[str] = []

SOURCE_SCHEMA = "id string, city string, ts bigint, fare double"


class Stream:
    """A directory of JSON files as a source, a table and a checkpoint."""

    def __init__(self, spark: Any, folder: Path, *, table_type: str = "mor") -> None:
        self.spark = spark
        self.source = folder / "source"
        self.checkpoint = folder / "checkpoint"
        self.source.mkdir()
        self.table = tk.Table.create(
            folder / "table",
            name="trips",
            schema=TRIPS,
            key="id",
            partition_by="city",
            ordering="ts",
            table_type=table_type,
            spark=spark,
        )

    def add(self, *rows: tuple[str, int]) -> None:
        """A file of rows for the source, given as (id, ts)."""
        lines = [json.dumps({"id": key, "city": "sf", "ts": ts, "fare": float(ts)}) for key, ts in rows]
        name = f"{len(list(self.source.iterdir())):04d}.json"
        (self.source / name).write_text("\n".join(lines), encoding="utf-8")

    def run(self, *, operation: str = "upsert", checkpoint: Path | None = None) -> None:
        """Take in what is there, one file a batch, and stop."""
        frame = self.spark.readStream.schema(SOURCE_SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.source))
        query = self.table.write_stream(
            frame, checkpoint=checkpoint or self.checkpoint, operation=operation, trigger={"availableNow": True}
        )
        query.awaitTermination()

    def forget_last_batch(self) -> None:
        """As if Spark had stopped after our commit and before its own note."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(commits, key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)

    def rows(self) -> list[tuple[str, int]]:
        return sorted((row["id"], row["ts"]) for row in self.table.read(columns=["id", "ts"]).collect())

    def batches(self) -> list[tuple[str, str]]:
        """Writer and batch of every commit, in order."""
        storage, config = open_storage(self.table.path), self.table.config
        commits = load_timeline(storage, config).completed_writes_by_completion
        extras = [load_commit_metadata(storage, config, instant).extra for instant in commits]
        return [(extra[WRITER_KEY], extra[BATCH_KEY]) for extra in extras]


@pytest.mark.parametrize("operation", ["insert", "upsert"])
def test_a_batch_that_spark_runs_again_after_a_restart_is_in_the_table_once(
    spark: Any, tmp_path: Path, operation: str
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(("a", 1), ("b", 1))
    stream.add(("c", 2))
    stream.run(operation=operation)
    assert stream.rows() == [("a", 1), ("b", 1), ("c", 2)]
    stream.forget_last_batch()
    stream.add(("d", 3))
    stream.run(operation=operation)
    assert stream.rows() == [("a", 1), ("b", 1), ("c", 2), ("d", 3)]
    writers = {writer for writer, _ in stream.batches()}
    assert len(writers) == 1
    assert [batch for _, batch in stream.batches()] == ["0", "1", "2"]


def test_commits_of_others_between_two_batches_do_not_hide_what_was_written(spark: Any, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, table_type="cow")
    stream.add(("a", 1))
    stream.run(operation="insert")
    other = spark.createDataFrame([("z", "la", 1, 1.0)], SOURCE_SCHEMA)
    stream.table.insert(other)
    stream.table.upsert(other)
    stream.forget_last_batch()
    stream.run(operation="insert")
    assert stream.rows() == [("a", 1), ("z", 1)]


def test_a_new_checkpoint_is_a_new_writer_and_starts_from_the_beginning(spark: Any, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(("a", 1))
    stream.run()
    stream.add(("a", 2))
    stream.run(checkpoint=tmp_path / "another")
    assert stream.rows() == [("a", 2)]
    assert [batch for _, batch in stream.batches()] == ["0", "0", "1"]
    assert len({writer for writer, _ in stream.batches()}) == 2


def test_a_batch_without_rows_is_passed_over(spark: Any, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add()
    stream.run()
    assert stream.batches() == []
    stream.add(("a", 1))
    stream.run()
    assert stream.rows() == [("a", 1)]
    assert [batch for _, batch in stream.batches()] == ["1"]


def test_what_cannot_be_streamed_is_refused(spark: Any, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    still = spark.createDataFrame([("a", "sf", 1, 1.0)], SOURCE_SCHEMA)
    with pytest.raises(InvalidRequestError, match=r"streaming DataFrame, one that comes from spark\.readStream"):
        stream.table.write_stream(still, checkpoint=stream.checkpoint)
    with pytest.raises(InvalidRequestError, match="a stream can upsert, insert, bulk_insert, delete"):
        stream.table.write_stream(still, checkpoint=stream.checkpoint, operation="merge")
    local = tk.Table.open(stream.table.path, engine="local")
    with pytest.raises(InvalidRequestError, match="needs Spark"):
        local.write_stream(still, checkpoint=stream.checkpoint)
