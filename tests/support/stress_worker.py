"""One writer of the stress run, as a process of its own: writes until it is told to stop, or killed.

    python -m tests.support.stress_worker PLAN WRITER SEED

PLAN is the JSON file of a `StressPlan`. Before and after every write a line goes into the writer's journal: what it is
about to write, and what became of it. A write carries its name in the commit's extra metadata, so that a commit whose
writer was killed before it could note the outcome is recognised on the timeline.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import tablekeeper as tk
from tablekeeper.errors import ConflictError, TablekeeperError
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.stress_plans import find_flags

__all__ = [
    "NAME_KEY",
    "SCHEMA",
    "StressPlan",
    "Write",
    "load_journal",
    "next_write",
    "note",
    "open_table",
    "partition_of",
    "rows_frame",
]

NAME_KEY = "stress.write"
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("value", pa.string())])


@dataclass(frozen=True)
class StressPlan:
    """What all writers of a run have in common. `non_blocking`: the table is in that mode, and nobody may conflict.

    A write touches keys of `spread` partitions; writers rest for up to `pause_s` between two writes, so that table
    services get a chance. `jobs` are the table services that run beside them and must succeed at least once; `rest_s`
    is for how long at most those that rewrite everything rest.
    """

    table: str
    folder: str
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    keys: int = 120
    partitions: int = 3
    rows_a_write: int = 8
    delete_share: float = 0.2
    retries: int = 3
    non_blocking: bool = False
    spread: int | None = None
    pause_s: float = 0.0
    jobs: list[str] = field(default_factory=list)
    rest_s: float = 3.0

    def beside(self, jobs: list[str], *, rest_s: float = 3.0) -> StressPlan:
        """The plan with table services: writers leave each other and the services more room."""
        return replace(self, jobs=jobs, keys=240, partitions=8, spread=2, pause_s=0.5, rest_s=rest_s)

    def save(self) -> Path:
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @property
    def stop_file(self) -> Path:
        return Path(self.folder) / "stop"


@dataclass
class Write:
    """One write as its journal tells it. Rows are (key, ts); `outcome` is empty if the writer was killed before.

    `lost_to` has an entry for each conflict: the instant that was in the way, and its flags if it was found to be the
    plan of a table service.
    """

    name: str
    kind: str
    rows: list[tuple[str, int]]
    outcome: str = ""
    instant: str = ""
    lock_held_s: float = 0.0
    seconds: float = 0.0
    message: str = ""
    conflicts: int = 0
    completed_at: str = ""
    lost_to: list[tuple[str, str]] = field(default_factory=list)


def open_table(plan: StressPlan, **more: Any) -> tk.Table:
    return tk.Table.open(plan.table, engine="local", storage_options=plan.storage_options or None, **more)


def partition_of(key: str, partitions: int) -> str:
    return f"p{int(key[1:]) % partitions}"


def rows_frame(write: Write, plan: StressPlan) -> pa.Table:
    rows = [
        {"id": key, "part": partition_of(key, plan.partitions), "ts": ts, "value": write.name} for key, ts in write.rows
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def load_journal(path: Path) -> dict[str, Write]:
    """The writes of one writer; a last line that was cut off by a kill is left out."""
    writes: dict[str, Write] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        entry = json.loads(line)
        if "rows" in entry:
            rows = [(key, ts) for key, ts in entry["rows"]]
            writes[entry["name"]] = Write(entry["name"], entry["kind"], rows)
        else:
            write = writes[entry.pop("name")]
            for name, value in entry.items():
                setattr(write, name, value)
    return writes


def main() -> None:
    plan_path, writer, seed = sys.argv[1:4]
    plan = StressPlan(**json.loads(Path(plan_path).read_text(encoding="utf-8")))
    chance = random.Random(int(seed))
    table = open_table(plan)
    journal = os.open(Path(plan.folder) / f"journal-{writer}-{seed}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while not plan.stop_file.exists():
        number += 1
        write = next_write(f"{writer}-{seed}-{number}", plan, chance)
        note(journal, {"name": write.name, "kind": write.kind, "rows": write.rows})
        note(journal, {"name": write.name, **_carry_out(table, plan, write)})
        SYSTEM_RUNTIME.clock.sleep(chance.uniform(0, plan.pause_s))


def next_write(name: str, plan: StressPlan, chance: random.Random) -> Write:
    """What a writer writes next."""
    kind = "delete" if chance.random() < plan.delete_share else "upsert"
    spread = chance.sample(range(plan.partitions), plan.spread or plan.partitions)
    keys = [key for key in range(plan.keys) if key % plan.partitions in spread]
    if kind == "delete":
        keys = [key for key in keys if _is_mortal(key, plan)]
    chosen = sorted(chance.sample(keys, min(len(keys), plan.rows_a_write)))
    # Few values, so that many rows meet one of the same age.
    return Write(name, kind, [(f"k{k}", 500 if _is_mortal(k, plan) else chance.randrange(1_000)) for k in chosen])


def _is_mortal(key: int, plan: StressPlan) -> bool:
    """Whether a key may be deleted; its rows are all of one age then.

    Of a row that comes after a deletion, and is older than the one before, the format does not say whether it comes
    back: that depends on which of the three are in one log, and so on when the table was compacted.
    """
    return key // plan.partitions % 2 == 0


def _carry_out(table: tk.Table, plan: StressPlan, write: Write) -> dict[str, Any]:
    """Write, again after a conflict; the loop is here and not in the table so that conflicts can be counted."""
    rows = rows_frame(write, plan)
    do = table.delete if write.kind == "delete" else table.upsert
    lost_to: list[tuple[str, str]] = []
    for attempt in range(plan.retries + 1):
        try:
            result = do(rows, extra={NAME_KEY: write.name})
        except ConflictError as error:
            if not error.beaten_by or not error.file_groups:
                return {"outcome": "bad conflict", "message": str(error)}
            lost_to.append((error.beaten_by, find_flags(table, RequestedTime(error.beaten_by))))
            SYSTEM_RUNTIME.clock.sleep(plan.pause_s)
        except TablekeeperError as error:
            return {"outcome": type(error).__name__, "message": str(error), "lost_to": lost_to}
        else:
            return {
                "outcome": "committed",
                "instant": "" if result.instant is None else result.instant.value,
                "lock_held_s": result.lock_held_s,
                "seconds": result.seconds,
                "conflicts": attempt,
                "completed_at": "" if result.completed_at is None else result.completed_at.value,
                "lost_to": lost_to,
            }
    return {"outcome": "conflict", "conflicts": plan.retries + 1, "lost_to": lost_to}


def note(journal: int, entry: dict[str, Any]) -> None:
    """Add a line to the journal, whole or not at all."""
    os.write(journal, json.dumps(entry).encode() + b"\n")


if __name__ == "__main__":
    main()
