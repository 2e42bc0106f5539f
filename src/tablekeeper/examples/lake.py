"""The second half of the tour: a lake of eight tables, writers that stream into them, and the service that keeps it.

The service is the real one, `tablekeeper serve` in a process of its own. Reads are measured before it is told of the
tables and after it has done its work, while the writers went on; each time all rows are compared with those written.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.client import ServiceClient, ServiceUnreachableError
from tablekeeper.config.hosting_settings import hosted_writer_options
from tablekeeper.errors import TablekeeperError
from tablekeeper.examples.steps import Outcome, Step, check, record_table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.table import Table

__all__ = ["LAKE_STEPS", "Lake", "served_lake"]

_NAMES = ("bookings", "drivers", "fares", "invoices", "payments", "ratings", "riders", "trips")
# Copy-on-write: nothing to compact, small files to cluster.
_COPIED = ("drivers", "riders")
_CITIES = ("amsterdam", "berlin", "lagos", "nyc")
_SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("version", pa.int64()), ("note", pa.string())])
_COMPACT_AFTER = 6
_SHARED = {"keep_commits": 2}
_POLICIES: dict[str, dict[str, Any]] = {
    "mor": {**_SHARED, "services": ["compaction", "clean"], "compact_after_commits": _COMPACT_AFTER},
    # Writers never wait for a clustering that is cancellable, and never fail because of one.
    "cow": {
        **_SHARED,
        "services": ["clustering", "clean"],
        "cluster_after_commits": 10,
        "order_by": ["id"],
        "cancellable": True,
    },
}
_WRITERS = 2
_TIMEOUT_S = 120.0
_TIMES_READ = 3


@dataclass(frozen=True)
class _Reading:
    """How a table was found: log files that a read merges, and the seconds of the fastest of a few reads."""

    logs: int
    seconds: float


@dataclass
class Lake:
    """What the steps share. Each round of writes changes every `rounds`th row of each table."""

    folder: Path
    rows: int = 20_000
    rounds: int = 8
    written: int = 0
    url: str = ""
    before: dict[str, _Reading] = field(default_factory=dict)
    after: dict[str, _Reading] = field(default_factory=dict)

    @property
    def service(self) -> ServiceClient:
        return ServiceClient([self.url])

    def place(self, name: str) -> str:
        return str(self.folder / "lake" / name)

    def open(self, name: str, *, hosted: bool = False) -> Table:
        """The table; a `hosted` writer leaves services to the service after each commit."""
        options = hosted_writer_options(self.url) if hosted else {}
        return Table.open(self.place(name), engine="local", options=options)

    def batch(self, round_: int) -> pa.Table:
        """The rows that this round changes, all of them for round 0."""
        ids = range(self.rows) if round_ == 0 else range(round_ % self.rounds, self.rows, self.rounds)
        cities = [_CITIES[each // self.rounds % len(_CITIES)] for each in ids]
        notes = [f"row {each} as of round {round_}, with enough text to weigh something" for each in ids]
        return pa.table([list(ids), cities, [round_] * len(ids), notes], schema=_SCHEMA)

    def expected_versions(self) -> int:
        """The sum of all versions after `written` rounds."""
        newest = {round_ % self.rounds: round_ for round_ in range(1, self.written + 1)}
        return sum(newest.get(each % self.rounds, 0) for each in range(self.rows))

    def settled_operations(self) -> list[dict[str, Any]]:
        """All operations, once nothing is due, waits or runs any more; none until then."""
        tables = self.service.get("/v1/tables")["tables"]
        operations: list[dict[str, Any]] = self.service.get("/v1/operations", {"limit": 1000})["operations"]
        is_behind = any(each["facts"]["commits_behind"] >= _COMPACT_AFTER for each in tables)
        is_over = all(each["status"] in ("completed", "cancelled") for each in operations)
        return [] if is_behind or not is_over else operations

    def stream(self, rounds: int, *, hosted: bool) -> None:
        """Write so many rounds into every table, by a few writers at once."""
        numbers = range(self.written + 1, self.written + rounds + 1)

        def write(names: tuple[str, ...]) -> None:
            for number in numbers:
                for name in names:
                    self.open(name, hosted=hosted).upsert(self.batch(number), retries=20)

        shares = [_NAMES[writer::_WRITERS] for writer in range(_WRITERS)]
        SYSTEM_RUNTIME.threads.map(write, shares, width=_WRITERS)
        self.written += rounds

    def read(self) -> dict[str, _Reading]:
        """Read each table a few times, and see whether every row is what the last write made it."""
        return {name: self._read(name) for name in _NAMES}

    def _read(self, name: str) -> _Reading:
        seconds = []
        for _ in range(_TIMES_READ):
            began_s = SYSTEM_RUNTIME.clock.monotonic_s()
            found = self.open(name).read()
            seconds.append(SYSTEM_RUNTIME.clock.monotonic_s() - began_s)
            check(found.num_rows, self.rows, f"rows in {name}")
            check(pc.sum(found.column("version")).as_py(), self.expected_versions(), f"as the versions of {name}")
        return _Reading(sum(len(each.logs) for each in self.open(name).files()), min(seconds))


def _kind(name: str) -> str:
    return "cow" if name in _COPIED else "mor"


def make_lake(lake: Lake) -> Outcome:
    for name in _NAMES:
        table = Table.create(
            lake.place(name),
            name=name,
            schema=_SCHEMA,
            key="id",
            partition_by="city",
            ordering="version",
            table_type=_kind(name),
            engine="local",
        )
        table.bulk_insert(lake.batch(0))
    return Outcome(f"{len(_NAMES)} tables of {lake.rows:,} rows, {len(_COPIED)} of them copy-on-write")


def stream_alone(lake: Lake) -> Outcome:
    lake.stream(lake.rounds, hosted=False)
    return Outcome(f"{lake.rounds * len(_NAMES)} commits by {_WRITERS} writers, and nobody looked after the tables")


def read_before(lake: Lake) -> Outcome:
    lake.before = lake.read()
    logs = sum(each.logs for each in lake.before.values())
    milliseconds = 1000 * sum(each.seconds for each in lake.before.values())
    return Outcome(f"all eight in {milliseconds:,.0f} ms: reads merge {logs} log files")


def tell_service(lake: Lake) -> Outcome:
    for name in _NAMES:
        body = {"db_name": "demo", "base_path": lake.place(name), "policy": _POLICIES[_kind(name)]}
        lake.service.post("/v1/tables", body)
    return Outcome(f"eight tables registered at {lake.url} (see it there while it works)")


def stream_hosted(lake: Lake) -> Outcome:
    rounds = lake.rounds // 2
    lake.stream(rounds, hosted=True)
    return Outcome(f"{rounds * len(_NAMES)} commits more; after each one the writer told the service, and went on")


def wait_for_service(lake: Lake) -> Outcome:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while not (operations := lake.settled_operations()):
        if clock.monotonic_s() > until_s:
            raise TablekeeperError(
                "the tour expected the service to come to an end, and it did not: please report this"
            )
        clock.sleep(0.3)
    counts = Counter((each["action"], each["status"]) for each in operations)
    compacted = {
        each["table"] for each in operations if (each["action"], each["status"]) == ("compaction", "completed")
    }
    check(len(compacted), len(_NAMES) - len(_COPIED), "tables that the service has compacted")
    reasons = {each["action"]: each["why"] for each in operations}
    shown = [
        {"service": action, "became": status, "operations": count, "for example because": reasons[action]}
        for (action, status), count in sorted(counts.items())
    ]
    return Outcome(f"{len(operations)} operations, decided, planned and executed by the service", record_table(shown))


def read_after(lake: Lake) -> Outcome:
    lake.after = lake.read()
    shown = [
        {
            "table": name,
            "log files before": lake.before[name].logs,
            "after": lake.after[name].logs,
            "read before": f"{1000 * lake.before[name].seconds:,.0f} ms",
            "now": f"{1000 * lake.after[name].seconds:,.0f} ms",
            "": _gain(lake, name),
        }
        for name in _NAMES
    ]
    before, after = (sum(each.seconds for each in found.values()) for found in (lake.before, lake.after))
    text = f"all eight in {1000 * after:,.0f} ms instead of {1000 * before:,.0f}, and every row as it was written last"
    return Outcome(text, record_table(shown))


def _gain(lake: Lake, name: str) -> str:
    # Reads of a copy-on-write table merge nothing: what a clustering gains is for those who filter.
    if name in _COPIED:
        return "rows sorted by id"
    return f"{lake.before[name].seconds / lake.after[name].seconds:.1f}x faster"


LAKE_STEPS: tuple[Step[Lake], ...] = (
    Step("Make a lake of eight tables", make_lake),
    Step("Stream into them", stream_alone),
    Step("Read them", read_before),
    Step("Tell the Table Management Service of them", tell_service),
    Step("Stream on, and leave the services to it", stream_hosted),
    Step("See what it did", wait_for_service),
    Step("Read them again", read_after),
)


@contextmanager
def served_lake(folder: Path, *, rows: int = 20_000, rounds: int = 8) -> Iterator[Lake]:
    """A lake to be, and a service that may touch it, which is stopped in order at the end."""
    lake = Lake(folder, rows, rounds)
    (folder / "lake").mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lake.url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tablekeeper", "serve", "--allow", str(folder / "lake"), "--engine", "arrow"]
    command += ["--port", str(port), "--work-dir", str(folder / "service")]
    log = folder / "service.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as process,  # noqa: S603 (our own program)
    ):
        try:
            _wait_until_up(lake, process, log)
            yield lake
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _wait_until_up(lake: Lake, process: subprocess.Popen[bytes], log: Path) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while True:
        try:
            lake.service.get("/healthz")
        except ServiceUnreachableError:
            if process.poll() is not None or clock.monotonic_s() > until_s:
                raise TablekeeperError(f"the service did not start: {log.read_text()[-2000:]}") from None
            clock.sleep(0.1)
        else:
            return
