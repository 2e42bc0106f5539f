"""Random histories with table services in them, by Java and by us: after every turn everybody reads the same rows.

Each turn is a write, the scheduling of a plan or its execution, by Java Hudi or by us. After each of them Java
(snapshot, read-optimized and incremental), hudi-rs (snapshot) and we agree with the model: services change no row, and
no incremental query shows one of theirs. Seeds can be replayed one by one (`TK_SEED=7`), and further ones be tried
(`TK_FIRST_SEED=100 TK_HISTORIES=50`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tests.interop.peers import (
    Engine,
    Panel,
    engine_of,
    java_step,
    java_table,
    last_completion,
    our_step,
    our_table,
    panel_at,
    replay_command,
)
from tests.support.cleaning import clean, keep, schedule
from tests.support.history import Model, history_seeds
from tests.support.java_hudi import JavaTable
from tests.support.java_services import JavaServices
from tests.support.service_history import ServiceHistory, ServiceName, Turn, make_service_history

__all__: list[str] = []

TEST = "test_service_histories"
# Both table types, merge modes and indexes, with and without partitions and metadata table.
SEEDS = [seed for seed in history_seeds() if seed in (0, 3, 7, 9, 10, 13)] or history_seeds()
KEPT = 1
ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": str(KEPT)}
# Java compacts the metadata table with its writes, so that archiving is not held back by it for the whole history.
JAVA = {"hoodie.metadata.compact.max.delta.commits": "3"}
LOGS = {"hoodie.log.compaction.blocks.threshold": "2"}
ACTIONS = {"compaction": "compaction", "log_compaction": "logcompaction", "clustering": "clustering", "clean": "clean"}
ORDER = "ts"


@dataclass
class Play:
    """A table that a history is played into, with all programs around it."""

    spark: Any
    path: Path
    history: ServiceHistory
    engine: Engine
    model: Model = field(init=False)
    done: list[ServiceName] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = Model(self.history.shape)

    @property
    def java(self) -> JavaTable:
        table = java_table(self.spark, self.path, self.history.shape)
        return JavaTable(table.spark, table.path, {**table.options, **JAVA})

    @property
    def ours(self) -> tk.Table:
        return our_table(self.spark, self.path, self.history.shape, engine=self.engine)

    def play(self) -> None:
        """All turns, each followed by what everybody has to say about the table."""
        since: str | None = None
        for number, turn in enumerate(self.history.turns):
            try:
                self._write(turn) if turn.write is not None else self._serve(turn)
            except Exception as error:
                error.add_note(f"in turn {number} ({turn}) of {self.history}\n{replay_command(self.history, TEST)}")
                raise
            self._check(number, turn, since=since)
            since = last_completion(self.path)

    def _write(self, turn: Turn) -> None:
        assert turn.write is not None
        shape = self.history.shape
        if turn.by == "java":
            java_step(self.java, shape, turn.write)
        else:
            our_step(self.ours, self.java, shape, turn.write, engine=self.engine)
        self.model.apply(turn.write)

    def _serve(self, turn: Turn) -> None:
        service = turn.service
        assert service is not None
        if service == "archive":
            moved = self._archive(turn)
        elif turn.phase == "schedule":
            self._schedule(turn, service)
            return
        else:
            moved = self._execute(turn, service)
        if moved:
            self.done.append(service)

    def _schedule(self, turn: Turn, service: ServiceName) -> None:
        by_java = turn.by == "java"
        match service:
            case "compaction":
                self.java.schedule_compaction() if by_java else self.ours.schedule_compaction()
            case "log_compaction":
                self._services.schedule("LOG_COMPACT") if by_java else self.ours.schedule_log_compaction(options=LOGS)
            case "clustering":
                self.java.schedule_clustering(order=ORDER) if by_java else self.ours.schedule_clustering(order_by=ORDER)
            case _:
                self._services.schedule("CLEAN") if by_java else schedule(self.ours, keep(KEPT))

    def _execute(self, turn: Turn, service: ServiceName) -> bool:
        """Execute the plan that waits, if there is one; whether there was."""
        waiting = self.pending(service)
        if not waiting:
            return False
        (instant,) = waiting
        if turn.by == "us":
            clean(self.ours, keep(KEPT)) if service == "clean" else self.ours.execute(instant)
        else:
            match service:
                case "compaction":
                    self._services.compact(instant)
                case "log_compaction":
                    self._services.compact_logs(instant)
                case "clustering":
                    self.java.execute_clustering()
                case _:
                    self._services.clean()
        assert self.pending(service) == []
        return True

    def _archive(self, turn: Turn) -> bool:
        before = self._instant_files()
        if turn.by == "us":
            self.ours.archive(options=ARCHIVE)
        else:
            self._services.archive()
        return self._instant_files() < before

    def pending(self, service: ServiceName) -> list[str]:
        """Instants of the plans that wait, from the file names alone."""
        names = self._instant_files()
        requested = [name.split(".")[0] for name in names if name.endswith(f".{ACTIONS[service]}.requested")]
        completed = {name.split("_")[0] for name in names if "_" in name}
        return sorted(instant for instant in requested if instant not in completed)

    def _instant_files(self) -> set[str]:
        found = (self.path / ".hoodie" / "timeline").iterdir()
        return {file.name for file in found if file.is_file() and not file.name.startswith(".")}

    @property
    def _services(self) -> JavaServices:
        return JavaServices(self.java, ARCHIVE)

    def _check(self, number: int, turn: Turn, *, since: str | None) -> None:
        panel, model = panel_at(Panel(self.spark, self.path, self.history, TEST), number), self.model
        panel.check_snapshot(model, number)
        panel.check_read_optimized(model, number)
        if turn.write is None:
            panel.check_changes(model.table().slice(0, 0), number, since=since)
        elif last_completion(self.path) != since:
            # Incremental queries on MOR show a stale update as it was written: there Java's answer is the measure.
            is_measured = self.history.shape.table_type == "mor" and turn.write.operation == "upsert"
            panel.check_changes(None if is_measured else model.changed_after(model.steps - 1), number, since=since)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_everyone_agrees_after_every_write_and_every_service(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_service_history(seed)
    play = Play(spark, tmp_path / "t", history, engine_of(seed))
    play.play()
    assert play.done, f"no service of {history} found anything to do"
