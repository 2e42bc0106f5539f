"""Chaos: the management service under a monkey; nothing may be lost, done twice, or left behind.

    python -m bench.chaos --tables 200 --operations 2000 --seed 1

Real `tablekeeper serve` processes over one PostgreSQL (Debian's) look after a lake that one process writes to.
Instances and workers are killed (SIGKILL) and put to sleep (SIGSTOP) at random, and the database is restarted twice,
once as if it had crashed. One request in ten is not sent at all. In the end everything is judged by the timelines and
by models of the tables. Ends with status 1 if anything is wrong, and says what; the seed decides who is hurt when.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from tablekeeper.client.http import ServiceRefusedError, ServiceUnreachableError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.model import ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.database import connect
from tablekeeper.server.store.protocol import NewTable
from tablekeeper.server.store.schema import OPERATION
from tablekeeper.server.store.sql import open_store
from tests.support.chaos_crew import Crew, Monkey
from tests.support.chaos_judge import count_statuses, find_faults
from tests.support.chaos_lake import HEARTBEATS, ChaosTable, make_lake
from tests.support.databases import DebianPostgres, new_database

__all__ = ["main"]

CLOCK = SYSTEM_RUNTIME.clock
POLICY = Policy(
    services=(ServiceAction.CLEAN,), clean_after_commits=12, keep_commits=4, time_limit_s=90, options=HEARTBEATS
)
LOST_SHARE = 0.1
CLEAN_SHARE = 0.1
UNFINISHED = (Status.PENDING, Status.CLAIMED, Status.RUNNING)


class Run:
    """One run: who takes part, and what was asked of the service."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, server: DebianPostgres) -> None:
        self.arguments = arguments
        self.server = server
        self.rng = random.Random(arguments.seed)
        url = new_database(server.url, "chaos")
        self.crew = Crew(folder, url.replace("postgresql+psycopg", "postgresql"), arguments.slots)
        self.engine: Engine = connect(url)
        self.monkey = Monkey(self.crew, random.Random(f"monkey {arguments.seed}"), every_s=arguments.hurt_every)
        self.asked: Counter[str] = Counter()
        self.restarts = 0
        store = open_store(url)
        store.migrate()
        self.lake: Sequence[ChaosTable] = make_lake(folder, arguments.tables)
        for each in self.lake:
            store.register_table(NewTable("chaos", each.name, f"file://{each.path}", policy=POLICY))
        store.close()

    def count(self, *statuses: Status) -> int:
        """Operations in these statuses, all without any; -1 while the database is away."""
        query = select(func.count()).select_from(OPERATION)
        try:
            with self.engine.connect() as connection:
                return int(
                    connection.execute(
                        query.where(OPERATION.c.status.in_(statuses)) if statuses else query
                    ).scalar_one()
                )
        except SQLAlchemyError:
            return -1

    def step(self) -> None:
        """Write to a table, and mostly ask for a service."""
        table = self.rng.choice(self.lake)
        table.write(self.rng)
        instance = self.rng.choice(self.crew.instances)
        is_clean = self.rng.random() < CLEAN_SHARE
        plan = None if is_clean else table.schedule()
        if plan is None and not is_clean:
            self.asked["nothing to plan"] += 1
        elif self.rng.random() < LOST_SHARE:
            self.asked["requests lost on purpose"] += 1
        else:
            verb = "compact" if table.action is ServiceAction.COMPACTION else "cluster"
            body = {"db_name": "chaos", "table_name": table.name, "instant": plan}
            path = f"/v1/hoodie/service/{verb}/submit" if plan else f"/v1/tables/chaos/{table.name}/run/clean"
            try:
                instance.client.post(path, body if plan else {})
                self.asked["answered"] += 1
            except ServiceUnreachableError:
                self.asked["not answered"] += 1
            except ServiceRefusedError as error:
                self.asked[f"refused: {error.code}"] += 1

    def restart_database(self) -> None:
        """Once in order, once as if it had crashed."""
        self.server.stop(is_crash=self.restarts % 2 == 1)
        CLOCK.sleep(self.rng.uniform(0, 3))
        self.server.start()
        self.restarts += 1

    def hurt(self, until_s: float) -> None:
        """Operations until there are enough, with the monkey at large."""
        wanted = self.arguments.operations
        restart_at = [wanted // 3, 2 * wanted // 3]
        made = 0
        told_s = CLOCK.monotonic_s()
        while made < wanted and CLOCK.monotonic_s() < until_s:
            self.monkey.run_once(CLOCK.monotonic_s())
            made = max(made, self.count())
            if restart_at and made >= restart_at[0]:
                restart_at.pop(0)
                self.restart_database()
            if 0 <= self.count(*UNFINISHED) < self.arguments.backlog:
                self.step()
            else:
                CLOCK.sleep(0.2)
            if CLOCK.monotonic_s() - told_s > 60:
                told_s = CLOCK.monotonic_s()
                print(f"  {made} operations, {self.count(*UNFINISHED)} of them unfinished", flush=True)

    def settle(self, until_s: float) -> None:
        """Everybody is awake; wait until nothing is left to do, which the service has to find by itself."""
        self.monkey.calm()
        quiet = 0
        while quiet < 20 and CLOCK.monotonic_s() < until_s:
            is_waiting = any(each.table.timeline_summary().pending for each in self.lake if each.plans)
            failed = self.count(Status.FAILED, Status.QUARANTINED)
            quiet = quiet + 1 if self.count(*UNFINISHED) == 0 and (not is_waiting or failed) else 0
            CLOCK.sleep(1.0)


def main() -> int:
    """One run; 0 if all is well."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="tkchaos"))
    (folder / "pg").mkdir()
    server = DebianPostgres(folder / "pg")
    server.start()
    begun_s = CLOCK.monotonic_s()
    crew = None
    faults: list[str] = []
    try:
        run = Run(arguments, folder, server)
        crew = run.crew
        print(
            f"seed {arguments.seed}: {arguments.tables} tables made in {CLOCK.monotonic_s() - begun_s:.0f} s",
            flush=True,
        )
        crew.start(arguments.instances)
        begun_s = CLOCK.monotonic_s()
        run.hurt(begun_s + arguments.most_seconds)
        hurt_s = CLOCK.monotonic_s() - begun_s
        run.settle(CLOCK.monotonic_s() + arguments.settle_seconds)
        settled_s = CLOCK.monotonic_s() - begun_s - hurt_s
        codes = crew.stop(120.0)
        faults += [f"an instance ended with {code} after SIGTERM" for code in codes if code != 0]
        faults += [f"process {pid} is left over" for pid in crew.jobs()]
        with run.engine.connect() as connection:
            faults += find_faults(connection, run.lake)
            statuses = count_statuses(connection)
        run.engine.dispose()
        _tell(run, hurt_s, settled_s, statuses)
    finally:
        if crew is not None:
            crew.stop(10.0)
        server.stop()
    for fault in faults:
        print(f"  WRONG: {fault}", flush=True)
    if faults:
        print(f"  kept for inspection: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return 1 if faults else 0


def _tell(run: Run, hurt_s: float, settled_s: float, statuses: dict[str, int]) -> None:
    shown = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
    print(f"{sum(statuses.values())} operations in {hurt_s:.0f} s, quiet after {settled_s:.0f} s more: {shown}")
    print(f"  hurt: {dict(run.monkey.deeds)}, database restarts: {run.restarts}, instances started: {run.crew.starts}")
    refused = sum(each.refused_writes for each in run.lake)
    print(f"  asked: {dict(run.asked)}; {refused} writes refused by conflicts", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=40, help="operations that may wait before the writer waits")
    parser.add_argument("--hurt-every", type=float, default=4.0, help="seconds between two deeds of the monkey")
    parser.add_argument("--most-seconds", type=float, default=7200.0, help="when to stop hurting in any case")
    parser.add_argument("--settle-seconds", type=float, default=900.0, help="seconds until everything has to be quiet")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
