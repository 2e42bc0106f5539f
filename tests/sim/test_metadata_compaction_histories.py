"""Random histories of a table with a metadata table that is looked after at any moment, also by processes that die.

After every step the metadata table lists the files that lie there, has statistics of these and of no others, and the
statistics of a partition are as wide as those of its files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError, StorageError
from tablekeeper.format.metadata_records import ColumnStatsRecord, FileListRecord
from tablekeeper.metadata_table import compaction
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.txn.environment import load_environment
from tests.support.metadata_content import load_content, metadata_files, metadata_timeline
from tests.support.recovery_world import World, worlds
from tests.support.step_faults import one_thread_runtime
from tests.support.table_builder import rows_of, trips

__all__: list[str] = []

CITIES = ("sf", "la", "ny")
EAGER = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "2",
    "hoodie.metadata.compact.max.delta.commits": "3",
}


class Life:
    """What happens to one table, and what has to be in it."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.rows: dict[tuple[str, str], float] = {}
        self.before: dict[tuple[str, str], float] | None = None
        self.done: list[str] = []

    def step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.upsert: 8,
            self.delete: 2,
            self.drop_partition: 1,
            self.roll_back: 2,
            self.clean: 2,
            self.archive: 2,
            self.compact: 1,
            self.keep: 3,
            self.die_keeping: 2,
        }
        (chosen,) = self.rng.choices(list(steps), weights=list(steps.values()))
        self.done.append(chosen.__name__)
        self.world.clock.advance(self.rng.choice([0.001, 0.5, 10]))
        chosen()

    def upsert(self) -> None:
        n = len(self.done)
        keys = [(f"k{self.rng.randrange(9)}", self.rng.choice(CITIES)) for _ in range(self.rng.randrange(1, 4))]
        self.before = dict(self.rows)
        self.world.table.upsert(trips(*((key, city, n, float(n)) for key, city in dict.fromkeys(keys))))
        self.rows |= dict.fromkeys(keys, float(n))

    def delete(self) -> None:
        if self.rows:
            key, city = self.rng.choice(sorted(self.rows))
            self.before = dict(self.rows)
            self.world.table.delete(trips((key, city, len(self.done), 0.0)))
            del self.rows[key, city]

    def drop_partition(self) -> None:
        city = self.rng.choice(CITIES)
        if any(each == city for _, each in self.rows):
            self.before = dict(self.rows)
            self.world.table.delete_partitions([city])
            self.rows = {key: fare for key, fare in self.rows.items() if key[1] != city}

    def roll_back(self) -> None:
        commits = self.world.timeline.completed_writes_by_completion
        if self.before is None or not commits:
            return
        with suppress(InvalidRequestError):
            self.world.table.rollback(commits[-1].requested_at.value)
            self.rows = self.before
        self.before = None

    def clean(self) -> None:
        self.world.table.clean(options=EAGER)

    def archive(self) -> None:
        self.world.table.archive(options=EAGER)
        self.before = None

    def compact(self) -> None:
        if self.world.table.config.is_mor:
            self.world.table.compact()
        else:
            self.world.table.cluster(order_by="ts")
        self.before = None

    def keep(self) -> None:
        runtime = one_thread_runtime(self.world.clock, process=900 + len(self.done))
        environment = load_environment(self.world.storage, Options(None), runtime=runtime)
        compact_metadata_table(environment, MetadataSettings(compact_after=1))

    def die_keeping(self) -> None:
        def fail(*_: object, **__: object) -> None:
            raise StorageError("the store is away")

        with pytest.MonkeyPatch.context() as patch, suppress(StorageError):
            patch.setattr(compaction, self.rng.choice(["start_inflight", "_put", "complete_instant"]), fail)
            self.keep()

    def check(self) -> None:
        self.world.refuse_stale_metadata_table()
        found = rows_of(self.world.table.read(), "id", "city", "fare")
        assert found == sorted(((*key, fare) for key, fare in self.rows.items()), key=repr)
        content = load_content(self.world.storage)
        lists = [record for record in content.values() if isinstance(record, FileListRecord)]
        files = {name for record in lists for name in record.live}
        of_files = [
            r for (part, _), r in content.items() if part == "column_stats" and isinstance(r, ColumnStatsRecord)
        ]
        assert {record.subject for record in of_files} <= files
        of_partitions = {
            (r.subject, r.range.column): r.range
            for (part, _), r in content.items()
            if part == "partition_stats" and isinstance(r, ColumnStatsRecord)
        }
        partition_of = {name: record.partition for record in lists for name in record.live}
        for record in of_files:
            if record.range.minimum is not None:
                wide = of_partitions[partition_of[record.subject], record.range.column]
                assert wide.merged_with(record.range).minimum == wide.minimum
                assert wide.merged_with(record.range).maximum == wide.maximum


@pytest.mark.parametrize("table_type", ["cow", "mor"])
@pytest.mark.parametrize("seed", range(6))
def test_the_metadata_table_is_right_after_every_step_of_a_random_history(table_type: str, seed: int) -> None:
    with worlds() as new:
        life = Life(new(metadata=True, table_type=table_type), seed)
        for _ in range(35):
            try:
                life.step()
                life.check()
            except Exception as error:
                error.add_note(f"seed {seed}, {table_type}: {life.done}")
                raise
        life.upsert()
        life.keep()
        life.check()
        assert metadata_timeline(life.world.storage).pending == ()
        assert len(metadata_files(life.world.storage)) < 120
