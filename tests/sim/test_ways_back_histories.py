"""Random histories of writes, services, savepoints, restores, rollbacks and archives, against a model of the rows.

A step that the table refuses changes nothing; after every step the rows are those of the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tablekeeper.errors import ConflictError, FencedError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.model import RequestedTime
from tests.support.recovery_world import LAPSED_S, World
from tests.support.table_builder import trips

__all__: list[str] = []

STEPS = 45
SEEDS = range(40)
SHORT = {"hoodie.keep.max.commits": 3, "hoodie.keep.min.commits": 2, "hoodie.clean.commits.retained": 1}
OPTIONS = {"hoodie.log.compaction.blocks.threshold": "2", "hoodie.compact.inline.max.delta.commits": "2"}
REFUSED = (InvalidRequestError, ConflictError, FencedError, UnsupportedFeatureError)

Rows = dict[tuple[str, str], float]


class History:
    """One table and what should be in it: now, after each write, and at each savepoint."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.world = World(
            table_type=self.choice.choice(["cow", "mor"]), metadata=self.choice.random() < 0.4, options=OPTIONS
        )
        self.rows: Rows = {}
        self.after: list[tuple[RequestedTime, Rows]] = []
        self.saved: dict[RequestedTime, Rows] = {}
        self.time = 0
        self.steps: dict[Callable[[], None], int] = {
            self.upsert: 8,
            self.overwrite: 2,
            self.delete_partition: 1,
            self.serve: 6,
            self.plan: 2,
            self.clean: 4,
            self.archive: 6,
            self.savepoint: 3,
            self.delete_savepoint: 1,
            self.restore: 3,
            self.rollback: 5,
            self.crash: 1,
            self.doctor: 2,
        }

    def run(self) -> Iterator[str]:
        """Take the steps, and say after each what it was."""
        for _ in range(STEPS):
            self.world.clock.advance(self.choice.choice([1, 10, 100]))
            self.time += 1
            (step,) = self.choice.choices(list(self.steps), list(self.steps.values()))
            try:
                step()
            except REFUSED as refusal:
                yield f"{step.__name__} ({refusal})"
            else:
                yield step.__name__

    def _wrote(self, instant: RequestedTime) -> None:
        self.after.append((instant, dict(self.rows)))

    def upsert(self) -> None:
        keys = {(f"k{self.choice.randint(0, 9)}", self.choice.choice(["sf", "la", "ny"])) for _ in range(3)}
        fare = float(self.time)
        written = self.world.table.upsert(trips(*((key, city, self.time, fare) for key, city in sorted(keys))))
        self.rows |= dict.fromkeys(keys, fare)
        self._wrote(written.instant)

    def overwrite(self) -> None:
        fare = float(self.time)
        written = self.world.table.insert_overwrite(trips(("o", "la", self.time, fare)))
        self.rows = {key: value for key, value in self.rows.items() if key[1] != "la"} | {("o", "la"): fare}
        self._wrote(written.instant)

    def delete_partition(self) -> None:
        written = self.world.table.delete_partitions(["ny"])
        self.rows = {key: value for key, value in self.rows.items() if key[1] != "ny"}
        self._wrote(written.instant)

    def serve(self) -> None:
        table = self.world.table
        self.choice.choice([table.compact, table.log_compact, lambda: table.cluster(order_by="fare")])()

    def plan(self) -> None:
        table = self.world.table
        schedule = self.choice.choice([table.schedule_compaction, table.schedule_clustering])
        schedule(cancellable=self.choice.random() < 0.5, mutable=self.choice.random() < 0.5)

    def clean(self) -> None:
        if self.choice.random() < 0.5:
            self.world.table.clean(keep_commits=self.choice.randint(1, 3))
        else:
            self.world.table.clean(keep_file_versions=self.choice.randint(1, 2))

    def archive(self) -> None:
        self.world.table.archive(options=SHORT)

    def savepoint(self) -> None:
        self.saved[self.world.table.savepoint().instant] = dict(self.rows)

    def delete_savepoint(self) -> None:
        if self.saved:
            instant = self.choice.choice(list(self.saved))
            self.world.table.delete_savepoint(instant)
            del self.saved[instant]

    def restore(self) -> None:
        if self.saved:
            instant = self.choice.choice(list(self.saved))
            self.world.table.restore(instant)
            self.rows = dict(self.saved[instant])
            timeline = self.world.timeline
            self.after = [each for each in self.after if timeline.is_completed(each[0])]

    def rollback(self) -> None:
        """Services change no rows: what a rollback of one leaves are those of the last write."""
        commits = self.world.timeline.completed_writes_by_completion
        if commits:
            self.world.table.rollback(commits[-1].requested_at)
            self.after = [each for each in self.after if each[0] != commits[-1].requested_at]
            self.rows = dict(self.after[-1][1]) if self.after else {}

    def crash(self) -> None:
        self.world.crash(trips(("x", "sf", self.time, 1.0)))

    def doctor(self) -> None:
        self.world.clock.advance(2 * LAPSED_S)
        self.world.table.doctor(fix=True)
        report = self.world.table.doctor()
        assert report.is_healthy, report


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_taken_back_the_rows_are_those_of_the_model(seed: int) -> None:
    history = History(seed)
    past: list[str] = []
    for step in history.run():
        past.append(step)
        expected = sorted((key, city, fare) for (key, city), fare in history.rows.items())
        assert history.world.rows("id", "city", "fare") == expected, past[-8:]
    assert len(past) == STEPS
    history.world.forget()
