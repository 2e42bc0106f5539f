"""Load on the management service: submits at a fixed rate, and the time of a scheduler pass as the history grows.

    python -m bench.service --tables 20000 --history 200000 --rate 300 --seconds 60
    python -m bench.service --sqlite --tables 1000 --history 20000 --rate 50 --seconds 20

One database (Debian's PostgreSQL, or SQLite), one `tablekeeper serve` process, and a client that sends each request at
its own moment, whether or not those before it were answered. Every request names another table with a plan that waits
on its timeline, as writers do. Then some that are executed, with as many slots as there are processors: now and then,
while slots are free, and all at once. Prints figures and ends with status 1 if a request was refused or an execution
failed; the goals are printed beside them. Latencies mean little on a machine that does other work; the time of a
processor says more there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import insert, text

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.decisions.choose import choose_next
from tablekeeper.server.model import FINISHED, Operation, ServiceAction, Status
from tablekeeper.server.settings import Limits
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission
from tablekeeper.server.store.rows import path_digest
from tablekeeper.server.store.schema import OPERATION, TBL, TBL_STATE
from tablekeeper.server.store.sql import SqlJobStore, open_store
from tests.support.chaos_lake import make_lake
from tests.support.databases import DebianPostgres, new_database
from tests.support.served import Served, running_service

__all__ = ["main"]

CLOCK = SYSTEM_RUNTIME.clock
CONNECTIONS = 32
WAITING = 2000
PASSES = 20
BATCH = 5000
SUBMIT = "/v1/hoodie/service/compact/submit"
JOBS = 40
JOBS_PER_S = 0.5
TIMEOUT_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def link_tables(folder: Path, count: int) -> tuple[Path, str]:
    """Tables that share their files by hard links, each with the same plan that waits; the folder and the instant.

    Only the last of them have data: those whose plans are executed.
    """
    template = make_lake(folder, 1)[0]
    instant, rng = None, random.Random(1)
    while instant is None:
        template.write(rng)
        instant = template.schedule()
    shutil.rmtree(folder / "lake" / template.name / ".hoodie" / ".tablekeeper", ignore_errors=True)
    lake = folder / "many"
    for number in range(count):
        table = lake / f"t{number}"
        if number < count - 2 * JOBS:
            shutil.copytree(template.path / ".hoodie", table / ".hoodie", copy_function=os.link)
        else:
            shutil.copytree(template.path, table, copy_function=os.link)
    return lake, instant


def register(store: SqlJobStore, lake: Path, count: int) -> list[int]:
    """The tables in the database, idle: nobody looks at them during the run."""
    first = store.register_table(NewTable("db", "t0", f"file://{lake}/t0"))[0].table_id
    with store._database.engine.begin() as connection:
        state = dict(connection.execute(TBL_STATE.select()).one()._mapping)
        table = dict(connection.execute(TBL.select()).one()._mapping)
        later = state["look_at_ms"] + 10**9
        ids = list(range(first, first + count))
        for begin in range(1, count, BATCH):
            numbers = range(begin, min(begin + BATCH, count))
            paths = {n: f"file://{lake}/t{n}" for n in numbers}
            rows = [table | {"id": first + n, "table_name": f"t{n}", "base_path": paths[n]} for n in numbers]
            connection.execute(insert(TBL), rows)
            digests = [{"tbl_id": first + n, "path_digest": path_digest(paths[n])} for n in numbers]
            connection.execute(insert(TBL_STATE), [state | each | {"look_at_ms": later} for each in digests])
        connection.execute(TBL_STATE.update().values(look_at_ms=later))
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT setval('tbl_id_seq', (SELECT max(id) FROM tbl))"))
    return ids


def add_history(store: SqlJobStore, ids: Sequence[int], count: int) -> None:
    """Operations that have completed."""

    seed = store.submit(Submission(ids[0], "00000000000000000", ServiceAction.COMPACTION)).operation
    with store._database.engine.begin() as connection:
        row = dict(connection.execute(OPERATION.select()).one()._mapping)
        del row["operation_id"]
        done = row | {"status": Status.COMPLETED, "finished_ms": store.now_ms()}
        for begin in range(0, count, BATCH):
            numbers = range(begin, min(begin + BATCH, count))
            rows = [done | {"tbl_id": ids[n % len(ids)], "instant": f"2020{n:013d}"} for n in numbers]
            connection.execute(insert(OPERATION), rows)
        connection.execute(OPERATION.delete().where(OPERATION.c.operation_id == seed.operation_id))
    with store._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


class Passes(NamedTuple):
    """Scheduler passes with many operations waiting, in milliseconds; `used` is of processors, the database's too."""

    median: float
    most: float
    used: float


def time_passes(store: SqlJobStore, ids: Sequence[int], database: Database) -> Passes:
    """Some scheduler passes with operations of 20 owners waiting."""

    seed = store.submit(Submission(ids[0], "19990000000000000", ServiceAction.CLEAN)).operation
    with store._database.engine.begin() as connection:
        query = OPERATION.select().where(OPERATION.c.operation_id == seed.operation_id)
        row = dict(connection.execute(query).one()._mapping)
        del row["operation_id"]
        more = range(1, WAITING)
        rows = [row | {"tbl_id": ids[n % len(ids)], "instant": f"1999{n:013d}", "owner": f"o{n % 20}"} for n in more]
        connection.execute(insert(OPERATION), rows)
    taken = []
    before_s = time.process_time() + database.processor_s()
    for _ in range(PASSES):
        begun_s = CLOCK.monotonic_s()
        choose_next(store.load_work(Limits().scheduler_window), Limits(), slots=8)
        taken.append(1000 * (CLOCK.monotonic_s() - begun_s))
    used_s = time.process_time() + database.processor_s() - before_s
    with store._database.engine.begin() as connection:
        connection.execute(OPERATION.delete().where(OPERATION.c.status == Status.PENDING))
    return Passes(percentile(taken, 0.5), max(taken), 1000 * used_s / PASSES)


async def send(served: Served, bodies: Sequence[bytes], rate: float) -> tuple[list[float], list[str]]:
    """Send them at their moments; the seconds from each one's moment to its answer, and what was refused."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    waiting: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
    taken: list[float] = []
    refused: list[str] = []

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while (item := await waiting.get()) is not None:
            due_s, body = item
            head = f"POST {SUBMIT} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            sizes = [line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            told = await reader.readexactly(int(sizes[0].partition(b":")[2]))
            taken.append(CLOCK.monotonic_s() - due_s)
            if not answer.startswith(b"HTTP/1.1 200") or b'"accepted"' not in told:
                refused.append(told[:200].decode(errors="replace"))
        writer.close()

    workers = [asyncio.create_task(work()) for _ in range(CONNECTIONS)]
    begun_s = CLOCK.monotonic_s()
    for number, body in enumerate(bodies):
        due_s = begun_s + number / rate
        await asyncio.sleep(max(0.0, due_s - CLOCK.monotonic_s()))
        waiting.put_nowait((due_s, body))
    for _ in workers:
        waiting.put_nowait(None)
    await asyncio.gather(*workers)
    return taken, refused


class Usage:
    """What the process that serves this address has used so far."""

    def __init__(self, url: str) -> None:
        port = url.rpartition(":")[2].encode()
        self._entry = next(entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _serves(entry, port))

    def resident_mb(self) -> float:
        """Its memory."""
        return int((self._entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def processor_s(self) -> float:
        """The time of processors, in the kernel too."""
        return sum(_times(self._entry)[:2])


class Database:
    """A database for the run. `folder` is of PostgreSQL's server, None with SQLite, which has no process."""

    def __init__(self, url: str, folder: Path | None) -> None:
        self.url = url
        self._folder = folder

    def processor_s(self) -> float:
        """What the server has used so far, with the processes of its connections, those that are gone too."""
        if self._folder is None:
            return 0.0
        server = (self._folder / "data" / "postmaster.pid").read_text().split()[0]
        used = sum(_times(Path("/proc") / server))
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and _fields(entry)[1] == server:
                    used += sum(_times(entry)[:2])
        return used


def _fields(entry: Path) -> list[str]:
    """Of a process, what follows its name."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _times(entry: Path) -> list[float]:
    """Seconds of processors: its own, in the kernel, and both of its children that have ended."""
    return [int(each) / TICKS for each in _fields(entry)[11:15]]


def _serves(entry: Path, port: bytes) -> bool:
    try:
        line = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"serve" in line and port in line


def measure(served: Served, database: Database, bodies: Sequence[dict[str, Any]], rate: float) -> list[str]:
    """Send them, print how it went, and return what was refused."""
    usage = Usage(served.url)
    before_mb, before_s, own_s = usage.resident_mb(), usage.processor_s(), time.process_time()
    database_s = database.processor_s()
    taken, refused = asyncio.run(send(served, [json.dumps(each).encode() for each in bodies], rate))
    service_ms = 1000 * (usage.processor_s() - before_s) / len(taken)
    database_ms = 1000 * (database.processor_s() - database_s) / len(taken)
    client_ms = 1000 * (time.process_time() - own_s) / len(taken)
    p50, p95, p99 = (1000 * percentile(taken, share) for share in (0.5, 0.95, 0.99))
    shown = f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms"
    print(f"{len(taken)} submits at {rate:g}/s: {shown} (goal: p99 under 50), {len(refused)} refused")
    print(f"  time of a processor for each: {service_ms:.1f} ms in the service, {database_ms:.1f} ms in the database,")
    print(f"  {client_ms:.1f} ms in this client; memory {before_mb:.0f} MB before, {usage.resident_mb():.0f} MB after")
    for each in refused[:3]:
        print(f"  refused: {each}")
    return refused


def measure_jobs(served: Served, store: SqlJobStore, bodies: Sequence[dict[str, Any]], rate: float) -> int:
    """Send them, wait until they are executed, and print how long they waited; how many did not complete."""
    newest = max((each.operation_id for each in store.list_operations(OperationFilter(), Page(limit=1))), default=0)
    client, begun_s = served.client(), CLOCK.monotonic_s()
    for number, body in enumerate(bodies):
        CLOCK.sleep(max(0.0, begun_s + number / rate - CLOCK.monotonic_s()))
        client.post(SUBMIT, body)
    operations: list[Operation] = []
    while CLOCK.monotonic_s() - begun_s < TIMEOUT_S and not (operations and all(map(_is_over, operations))):
        CLOCK.sleep(0.1)
        found = store.list_operations(OperationFilter(), Page(limit=len(bodies)))
        operations = [each for each in found if each.operation_id > newest]
    taken_s = CLOCK.monotonic_s() - begun_s
    waited = [(each.schedule_ms - each.create_ms) / 1000 for each in operations if each.schedule_ms]
    completed = sum(each.status is Status.COMPLETED for each in operations)
    print(f"{completed} of {len(bodies)} compactions completed, in {taken_s:.1f} s")
    print(f"  from submit to start: p50 {percentile(waited, 0.5):.2f} s, p99 {percentile(waited, 0.99):.2f} s")
    return len(bodies) - completed


def _is_over(operation: Operation) -> bool:
    return operation.status in FINISHED


def main() -> int:
    """Run it; 1 if anything was refused or failed."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="tkload"))
    submits = int(arguments.rate * arguments.seconds)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        database = stack.enter_context(running_database(folder, is_sqlite=arguments.sqlite))
        store = open_store(database.url)
        stack.callback(store.close)
        store.migrate()
        lake, instant = link_tables(folder, min(arguments.tables, submits + 2 * JOBS))
        ids = register(store, lake, arguments.tables)
        compare_passes(store, ids, database, arguments.history)
        bodies = [_body(n, instant) for n in range(min(arguments.tables, submits + 2 * JOBS))]
        executed, bodies = bodies[-2 * JOBS :], bodies[: -2 * JOBS]
        extra = ["--db", database.url.replace("postgresql+psycopg", "postgresql")]
        with running_service(folder / "service", allow=lake, arguments=[*extra, "--slots", "0"]) as served:
            wrong = len(measure(served, database, bodies, arguments.rate))
        with store._database.engine.begin() as connection:
            connection.execute(OPERATION.delete().where(OPERATION.c.status == Status.PENDING))
        slots = os.cpu_count() or 1
        with running_service(folder / "service", allow=lake, arguments=[*extra, "--slots", str(slots)]) as served:
            print(f"{slots} slots, {JOBS_PER_S:g} a second (goal: p99 from submit to start under 5 s):")
            wrong += measure_jobs(served, store, executed[:JOBS], JOBS_PER_S)
            print(f"{slots} slots, all at once:")
            wrong += measure_jobs(served, store, executed[JOBS:], float(JOBS))
    return 1 if wrong else 0


def compare_passes(store: SqlJobStore, ids: Sequence[int], database: Database, history: int) -> None:
    """Print how long scheduler passes take with a short history and a long one, which stays."""
    print(f"scheduler pass, {WAITING} waiting (goal: under 200 ms, not growing with the history):")
    for finished in (1000, history):
        with store._database.engine.begin() as connection:
            connection.execute(OPERATION.delete())
        add_history(store, ids, finished)
        found = time_passes(store, ids, database)
        shown = f"{found.median:.0f} ms median, {found.most:.0f} ms most, {found.used:.0f} ms of processors"
        print(f"  {shown} after {finished:,} finished operations")


@contextmanager
def running_database(folder: Path, *, is_sqlite: bool) -> Iterator[Database]:
    """An empty one."""
    if is_sqlite:
        yield Database(f"sqlite:///{folder / 'load.db'}", None)
        return
    (folder / "pg").mkdir()
    server = DebianPostgres(folder / "pg")
    server.start()
    try:
        yield Database(new_database(server.url, "load"), folder / "pg")
    finally:
        server.stop()


def _body(number: int, instant: str) -> dict[str, Any]:
    return {"db_name": "db", "table_name": f"t{number}", "owner": "default", "instant": instant}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqlite", action="store_true", help="SQLite in place of PostgreSQL")
    parser.add_argument("--tables", type=int, default=20_000)
    parser.add_argument("--history", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
