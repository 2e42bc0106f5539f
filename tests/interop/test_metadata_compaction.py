"""Metadata tables that Java made and we keep house in: Java and hudi-rs read them with filters, and Java goes on.

Java takes up compactions that we left half done, rolls writes of ours back that died beside them, restores to
savepoints before them, and compacts, cleans and archives on top of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.metadata_table import compaction
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.metadata_table.result import MetadataCompaction
from tablekeeper.model import Action, RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import Storage, open_storage
from tablekeeper.timeline import load_timeline
from tablekeeper.txn.environment import load_environment
from tests.interop.crash import EXIT_STATUS
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.metadata_content import load_content, load_slices, metadata_files, metadata_timeline
from tests.support.table_builder import rows_of, trips

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]
ROW = ("id", "city", "ts", "fare")
CITIES = ("sf", "la", "ny")
SKIPPING = {"hoodie__metadata__enable": "true", "hoodie__enable__data__skipping": "true"}
COMPACT_AFTER = "hoodie.metadata.compact.max.delta.commits"
NEVER = {COMPACT_AFTER: "1000"}

Model = dict[str, tuple[str, str, int, float]]


class World:
    """One table with a metadata table of Java's, what has to be in it, and who looks at it."""

    def __init__(self, spark: Any, path: Path, table_type: str, extra: Mapping[str, str] | None = None) -> None:
        options = JavaTable.options_for(
            name="trips",
            key=["id"],
            partition_by=["city"],
            ordering="ts",
            table_type=table_type,
            extra={"hoodie.metadata.enable": "true", **(extra or {})},
        )
        self.spark, self.path, self.java = spark, path, JavaTable(spark, str(path), options)
        self.model: Model = {}
        self._moments = iter(range(1_000))
        self.by_java("insert", mode="overwrite", **NEVER)

    @property
    def table(self) -> tk.Table:
        return tk.Table.open(str(self.path), engine="local")

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.path))

    def rows(self) -> Any:
        """Three rows: two keys that come again and again, and a new one."""
        n = next(self._moments)
        rows = [(f"k{m % 7}", CITIES[m % 7 % 3], n, float(n)) for m in (n, n + 3)]
        rows.append((f"new{n}", CITIES[n % 3], n, float(n)))
        self.model.update({row[0]: row for row in rows})
        return trips(*rows)

    def by_java(self, operation: str = "upsert", *, mode: str = "append", **options: str) -> None:
        self.java.write(self.rows(), operation, mode=mode, **options)

    def by_us(self, count: int = 1) -> None:
        for _ in range(count):
            self.table.upsert(self.rows())

    def keep(self, after: int = 1) -> MetadataCompaction:
        environment = load_environment(self.storage, Options(None), runtime=SYSTEM_RUNTIME)
        return compact_metadata_table(environment, MetadataSettings(compact_after=after))

    def compactions(self) -> list[RequestedTime]:
        return [i.requested_at for i in metadata_timeline(self.storage).completed if i.action is Action.COMMIT]

    def check(self) -> None:
        """All rows, and filters that data skipping answers from the statistics, in every program."""
        expected = sorted(self.model.values(), key=repr)
        assert rows_of(self.java.read(**SKIPPING), *ROW) == expected
        assert rows_of(rust_read(str(self.path)), *ROW) == expected
        assert rows_of(self.table.read(), *ROW) == expected
        newest = max(row[2] for row in expected)
        for where, wanted in [
            (f"ts = {newest}", [row for row in expected if row[2] == newest]),
            (f"ts <= {newest // 2}", [row for row in expected if row[2] <= newest // 2]),
            (f"fare > {newest - 3}", [row for row in expected if row[3] > newest - 3]),
            (f"id = 'new{newest}'", [row for row in expected if row[0] == f"new{newest}"]),
            (f"city = 'la' and ts > {newest - 4}", [r for r in expected if r[1] == "la" and r[2] > newest - 4]),
        ]:
            assert rows_of(self.java.collect(self.java.scan(**SKIPPING).where(where)), *ROW) == wanted, where
            assert rows_of(self.table.read(where=where), *ROW) == wanted, where
        found = rust_read(str(self.path), filters=[("ts", "=", str(newest))])
        assert rows_of(found, *ROW) == [row for row in expected if row[2] == newest]

    def check_java_lists(self) -> None:
        """What Java lists from the metadata table is what lies there."""
        jvm, context = self.spark._jvm, self.spark._jsc
        conf = jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(context.hadoopConfiguration())
        engine = jvm.org.apache.hudi.client.common.HoodieSparkEngineContext(context)
        meta = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder().setConf(conf)
        config = jvm.org.apache.hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
        client = meta.setBasePath(str(self.path)).build()
        listed = jvm.org.apache.hudi.metadata.HoodieBackedTableMetadata(
            engine, client.getStorage(), config, str(self.path)
        )
        assert sorted(listed.getAllPartitionPaths()) == sorted(CITIES)
        for city in CITIES:
            directory = jvm.org.apache.hudi.storage.StoragePath(f"{self.path}/{city}")
            names = sorted(info.getPath().getName() for info in listed.getAllFilesInPartition(directory))
            there = sorted(
                file.name
                for file in self.storage.list_files(city)
                if not file.name.endswith(".crc") and not file.name.startswith(".hoodie_partition_metadata")
            )
            assert names == there
        listed.close()


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_java_and_hudi_rs_read_what_we_compacted_and_java_goes_on(spark: Any, tmp_path: Path, table_type: str) -> None:
    world = World(spark, tmp_path / "t", table_type)
    for _ in range(5):
        world.by_us(3)
        world.table.clean(keep_commits=2, options={COMPACT_AFTER: "5"})
        world.table.archive(
            options={
                "hoodie.keep.min.commits": "4",
                "hoodie.keep.max.commits": "6",
                "hoodie.clean.commits.retained": "2",
                COMPACT_AFTER: "5",
            }
        )
        world.check()
    assert len(metadata_files(world.storage)) < 60
    ours = world.compactions()
    assert ours
    world.check_java_lists()
    # Java's next writes compact, clean and archive the metadata table by themselves.
    for _ in range(4):
        world.by_java(**{COMPACT_AFTER: "2"})
        world.check()
    assert len([time for time in world.compactions() if time > ours[-1]]) >= 1
    world.by_us(3)
    world.table.clean(keep_commits=2, options={COMPACT_AFTER: "2"})
    world.check()
    world.check_java_lists()
    assert metadata_timeline(world.storage).pending == ()


def test_java_rewrites_and_deletes_what_we_compacted(spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", "mor", {"hoodie.metadata.index.column.stats.file.group.count": "6"})
    world.by_us(4)
    assert world.keep().instant is not None
    world.check()
    world.java.compact()
    world.check()
    world.java.cluster(order="ts")
    world.check()
    world.java.clean(retain=1)
    world.check()
    world.by_us(2)
    assert world.keep().instant is not None
    world.check()
    world.check_java_lists()


@contextmanager
def dying_at(step: str) -> Iterator[None]:
    """A compaction that ends before `step`, as a process that is killed would."""

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    def put_two(environment: Any, base: Any, at: Any) -> Any:
        done.append(base)
        if len(done) > 2:
            raise Killed
        return put(environment, base, at)

    done: list[Any] = []
    put = compaction._put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, *{"half of the base files": ("_put", put_two)}.get(step, (step, die)))
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("step", ["start_inflight", "_put", "half of the base files", "complete_instant"])
def test_java_carries_out_a_compaction_that_we_left_half_done(spark: Any, tmp_path: Path, step: str) -> None:
    world = World(spark, tmp_path / "t", "cow")
    world.by_us(4)
    with dying_at(step):
        world.keep()
    (waiting,) = metadata_timeline(world.storage).pending
    # Nobody minds what lies there, and a commit of ours may come in between.
    world.check()
    world.by_us()
    world.check()
    before = load_content(world.storage)
    world.by_java(**NEVER)
    assert world.compactions() == [waiting.requested_at]
    assert metadata_timeline(world.storage).pending == ()
    world.check()
    world.check_java_lists()
    # What Java made of our plan lies below its own commit and ours.
    for slices in load_slices(world.storage).values():
        assert {each.base_instant for each in slices} == {waiting.requested_at}
    kept = load_content(world.storage)
    assert before.keys() <= kept.keys()
    world.by_us()
    assert world.keep().instant is not None
    world.check()


def test_a_commit_in_a_compaction_that_waits_is_rolled_back_and_java_carries_it_out(spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", "mor")
    world.by_us(3)
    before = dict(world.model)
    world.by_us()
    with dying_at("complete_instant"):
        world.keep()
    last = world.table.timeline().instants[-1]
    world.table.rollback(last.requested_at.value)
    world.model = before
    world.check()
    world.by_java(**NEVER)
    assert len(world.compactions()) == 1
    world.check()
    world.check_java_lists()


def die_before_publishing(world: World) -> RequestedTime:
    """A writer that dies between its two completions; its instant."""
    rows = world.path.parent / "crash.parquet"
    pq.write_table(world.rows(), rows)
    command = [sys.executable, "-m", "tests.interop.crash", str(world.path), str(rows), "{}", "before_publish"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == EXIT_STATUS
    (pending,) = load_timeline(world.storage, world.table.config).pending
    assert metadata_timeline(world.storage).completion_of(pending.requested_at) is not None
    return pending.requested_at


def test_java_rolls_back_a_write_that_died_beside_our_compaction(spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", "cow")
    world.by_us(4)
    before = dict(world.model)
    dead = die_before_publishing(world)
    world.model = before
    done = world.keep()
    assert done.instant is not None
    assert done.instant < dead
    world.check()
    world.by_java(**NEVER)
    world.check()
    world.check_java_lists()
    world.by_us(2)
    assert world.keep().instant is not None
    world.check()


@pytest.mark.parametrize("compacted_before", [False, True])
def test_java_restores_to_a_savepoint_before_our_compactions(
    spark: Any, tmp_path: Path, compacted_before: bool
) -> None:
    world = World(spark, tmp_path / "t", "mor")
    world.by_us(3)
    if compacted_before:
        assert world.keep().instant is not None
        world.by_us()
    world.by_java(**NEVER)
    saved = world.table.savepoint()
    before = dict(world.model)
    for _ in range(3):
        world.by_us(2)
        assert world.keep().instant is not None
    world.check()
    name = f"restored_{compacted_before}".lower()
    spark.sql(f"create table {name} using hudi location '{world.path}'")
    spark.sql(f"call rollback_to_savepoint(table => '{name}', instant_time => '{saved.instant}')").collect()
    spark.sql(f"drop table {name}")
    world.model = before
    world.check()
    world.by_us(2)
    world.check()
    world.by_java(**{COMPACT_AFTER: "1"})
    world.by_java(**NEVER)
    world.check()
    world.check_java_lists()
