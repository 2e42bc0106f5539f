"""Pages with 20,000 tables: how long the service takes for each."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.store.sql import open_store
from tests.support.served import Served, running_service

TABLES = 20_000
OPERATIONS = 20_000
WANTED_S = 0.3
# The figure is printed. What fails is a page that grows with the lake, not a machine that others use too.
SLACK = 4
ROUNDS = 7
FAR_AWAY_MS = 4_000_000_000_000
PAGES = (
    "/",
    "/tables",
    "/tables?search=t019",
    "/tables?search=nowhere",
    "/tables?state=quarantined",
    "/operations",
    "/operations?status=failed",
    "/instances",
    "/alarms",
    "/metrics",
)


def fill(path: Path, lake: Path) -> None:
    """Tables that are not looked at for long, one in a hundred in quarantine, and a finished operation of each."""
    facts = '{"newest_time": "", "commits_behind": 3, "behind_since_ms": 1700000000000, "pending_plans": 1}'
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO tbl VALUES (?, ?, ?, ?, 'default', ?, '', '5')",
            ((n, f"db{n % 40}", f"t{n:05d}", f"{lake}/t{n:05d}", f"q{n % 5}") for n in range(1, TABLES + 1)),
        )
        columns = (
            "tbl_id, path_digest, policy, is_paused, quarantine, look_at_ms, hold_until_ms, is_noticed, idle_looks, "
            "failed_looks, facts"
        )
        connection.executemany(
            f"INSERT INTO tbl_state ({columns}) VALUES (?, ?, '{{}}', 0, ?, ?, 0, 0, 0, 0, ?)",
            (
                (n, hashlib.sha256(f"{n}".encode()).hexdigest(), "unreadable" * (n % 100 == 0), FAR_AWAY_MS, facts)
                for n in range(1, TABLES + 1)
            ),
        )
        names = [row[1] for row in connection.execute("PRAGMA table_info(operation)") if row[1] != "operation_id"]
        values = {
            "action": "compaction",
            "engine": "arrow",
            "queue": "default",
            "owner": "default",
            "parameters": "{}",
            "create_time": "2026-01-01 00:00:00.000000",
            "update_time": "2026-01-01 00:00:00.000000",
        }
        missing = {"schedule_time", "deadline_ms", "lease_until_ms", "running_key"}
        rows = []
        for n in range(1, OPERATIONS + 1):
            own = {**values, "tbl_id": n, "instant": "20260101000000000", "status": 4 if n % 50 == 0 else 3}
            rows.append(tuple(own.get(name, None if name in missing else _empty(name)) for name in names))
        quoted = ", ".join(f'"{name}"' for name in names)
        connection.executemany(f"INSERT INTO operation ({quoted}) VALUES ({', '.join('?' * len(names))})", rows)


def _empty(name: str) -> object:
    return "" if name in {"instance_id", "cancel_reason", "why", "note"} else 0


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("crowded")
    (home / "lake").mkdir()
    (home / "service").mkdir()
    store = open_store(f"sqlite:///{home / 'service' / 'service.db'}")
    store.migrate()
    store.close()
    fill(home / "service" / "service.db", home / "lake")
    with running_service(home / "service", allow=home / "lake", arguments=("--slots", "0")) as served:
        yield served


@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_a_lake_of_20_000_tables_is_quick(
    crowded: Served, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SYSTEM_RUNTIME.clock
    taken = []
    for _ in range(ROUNDS):
        started_s = clock.monotonic_s()
        with urlopen(crowded.url + path, timeout=60) as answer:
            shown = answer.read().decode()
        taken.append(clock.monotonic_s() - started_s)
    with capsys.disabled():
        sys.stdout.write(f"\n{path}: {median(taken) * 1000:.0f} ms (slowest {max(taken) * 1000:.0f} ms)\n")
    assert median(taken) < WANTED_S * SLACK
    if path == "/":
        assert re.search(rf">{TABLES}<", shown)
