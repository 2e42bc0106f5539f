"""A guided tour on local Spark: `python -m tablekeeper.examples.demo`, or `make demo`.

First one table on local Spark, then a lake of tables and the service that keeps it (`examples.lake`). The counts that
the steps say are checked against what must be true, so a tour that ends has also worked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tablekeeper.errors import ConflictError, TablekeeperError
from tablekeeper.examples.lake import LAKE_STEPS, served_lake
from tablekeeper.examples.steps import Outcome, Step, check, record_table, report, run_steps
from tablekeeper.runtime import SYSTEM_RUNTIME, Clock
from tablekeeper.table import Table
from tablekeeper.write.results import WriteResult

__all__ = ["STEPS", "Tour", "main"]

_CITIES = ("amsterdam", "berlin", "chennai", "lagos", "lima", "nyc", "osaka", "sf")
_SAMPLE = 5


@dataclass
class Tour:
    """What the steps share: the session, where the table goes, and what has been written so far."""

    spark: Any
    path: str
    rows: int
    written: dict[str, WriteResult] = field(default_factory=dict)
    expected_rows: int = 0

    @property
    def corrected(self) -> range:
        """The trips whose fare was wrong, some in each city."""
        return range(0, self.rows, 21)

    @property
    def added(self) -> range:
        """Trips that come later."""
        return range(self.rows, self.rows + self.rows // 100)

    @property
    def cancelled(self) -> range:
        """Trips that never happened, and whose fare was right."""
        return range(1, self.rows, 210)

    @property
    def table(self) -> Table:
        """The table, opened anew as any other program would."""
        return Table.open(self.path, spark=self.spark)

    def trips(self, numbers: range, *, ts: int, fare: str = "10 + id % 90") -> Any:
        """The trips with these numbers, the same ones each time."""
        cities = ", ".join(f"'{city}'" for city in _CITIES)
        return self.spark.range(numbers.start, numbers.stop, numbers.step, 4).selectExpr(
            "format_string('trip-%08d', id) as id",
            f"array({cities})[id % {len(_CITIES)}] as city",
            f"{ts}L as ts",
            "format_string('rider-%04d', id * 7919 % 5000) as rider",
            "timestamp_seconds(1790000000 + id * 37) as started_at",
            "cast(id % 400 / 10.0 as double) as distance_km",
            f"cast({fare} as double) as fare",
        )


def create(tour: Tour) -> Outcome:
    table = Table.create(
        tour.path,
        name="trips",
        schema=tour.trips(range(1), ts=1).schema,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type="mor",
        spark=tour.spark,
    )
    return Outcome(f"key id, partitioned by city, newest ts wins, at {table.path}")


def bulk_insert(tour: Tour) -> Outcome:
    result = tour.table.bulk_insert(tour.trips(range(tour.rows), ts=1))
    tour.written["bulk_insert"] = result
    tour.expected_rows = tour.rows
    check(result.rows_inserted, tour.rows, "rows inserted")
    return Outcome(_counts(result))


def upsert(tour: Tour) -> Outcome:
    corrected = tour.trips(tour.corrected, ts=2, fare="1000 + id % 90")
    result = tour.table.upsert(corrected.union(tour.trips(tour.added, ts=2)))
    tour.written["upsert"] = result
    tour.expected_rows += len(tour.added)
    check(result.rows_updated, len(tour.corrected), "rows updated")
    check(result.rows_inserted, len(tour.added), "rows inserted")
    return Outcome(_counts(result))


def delete(tour: Tour) -> Outcome:
    result = tour.table.delete(tour.trips(tour.cancelled, ts=3).select("id", "city"))
    tour.written["delete"] = result
    tour.expected_rows -= len(tour.cancelled)
    check(result.rows_deleted or 0, len(tour.cancelled), "rows deleted")
    return Outcome(_counts(result))


def read_all(tour: Tour) -> Outcome:
    count = tour.table.read().count()
    check(count, tour.expected_rows, "rows in the table")
    return Outcome(f"{count:,} rows: base files and logs merged")


def read_filtered(tour: Tour) -> Outcome:
    where = "city = 'sf' and fare >= 1000"
    frame = tour.table.read(columns=["id", "city", "ts", "rider", "fare"], where=where)
    count = frame.count()
    in_sf = [number for number in tour.corrected if _CITIES[number % len(_CITIES)] == "sf"]
    check(count, len(in_sf), "rows that match")
    sample = [row.asDict() for row in frame.orderBy("id").limit(_SAMPLE).collect()]
    return Outcome(f"{count:,} rows with {where}, from one partition of {len(_CITIES)}", record_table(sample))


def travel(tour: Tour) -> Outcome:
    then = tour.written["bulk_insert"].instant
    count = tour.table.read(as_of=then).count()
    check(count, tour.rows, "rows at the first commit")
    return Outcome(f"as of {then}: {count:,} rows; now {tour.expected_rows:,}")


def changes(tour: Tour) -> Outcome:
    since = tour.written["bulk_insert"].instant
    frame = tour.table.changes(since=since)
    cities = [row.asDict() for row in frame.groupBy("city").count().orderBy("city").collect()]
    count = sum(row["count"] for row in cities)
    check(count, len(tour.corrected) + len(tour.added), "rows changed")
    shown = record_table([{"city": row["city"], "changed rows": row["count"]} for row in cities])
    return Outcome(f"since {since}: {count:,} rows to pass on, of {tour.expected_rows:,}", shown)


def read_by_format(tour: Tour) -> Outcome:
    if not hasattr(tour.spark, "dataSource"):
        return Outcome(f"Spark {tour.spark.version} has no data sources in Python; Spark 4 has, and it works there too")
    reader = tour.spark.read.format("tablekeeper").option("columns", "id,city").option("where", "city = 'lima'")
    count = reader.load(tour.path).count()
    check(count, tour.table.read(where="city = 'lima'").count(), "rows in Lima")
    return Outcome(f'{count:,} rows by spark.read.format("tablekeeper").option("where", "city = \'lima\'").load(path)')


def timeline(tour: Tour) -> Outcome:
    listing = tour.table.timeline()
    check(len(listing), len(tour.written), "instants")
    return Outcome(f"{len(listing)} commits", record_table(listing.to_dicts()))


def files(tour: Tour) -> Outcome:
    listing = tour.table.files(partitions=["sf"])
    facts = listing.to_dicts()
    shown = [
        {
            "partition": fact["partition"],
            "file group": fact["file_id"],
            "base kB": round(fact["base_bytes"] / 1000),
            "logs": len(fact["log_files"]),
            "log kB": round(fact["log_bytes"] / 1000),
        }
        for fact in facts
    ]
    return Outcome(
        f"{len(facts)} file groups in partition sf: base files, and logs with what changed since", record_table(shown)
    )


def explain(tour: Tour) -> Outcome:
    found = tour.table.explain_compaction()
    if not found.file_groups:
        raise TablekeeperError("the tour expected logs to compact, and found none: please report this")
    text = (
        f"{found.file_groups} file groups, {found.bytes_in / 1e6:.1f} MB to read: {found.why_full or 'by what changed'}"
    )
    return Outcome(text)


def compact(tour: Tour) -> Outcome:
    plan = tour.table.schedule_compaction()
    if plan is None:
        raise TablekeeperError("the tour expected a compaction to be planned, and none was: please report this")
    # Any process may execute the plan, while others write; here it is the same one.
    result = tour.table.execute(plan)
    check(sum(len(fact["log_files"]) for fact in tour.table.files().to_dicts()), 0, "log files left")
    check(tour.table.read().count(), tour.expected_rows, "rows in the table")
    return Outcome(f"{result.file_groups} file groups, {result.rows:,} rows rewritten, plan {plan.instant}")


def yield_to_writer(tour: Tour) -> Outcome:
    plan = tour.table.schedule_clustering(order_by=["fare"], cancellable=True)
    if plan is None:
        raise TablekeeperError("the tour expected a clustering to be planned, and none was: please report this")
    late = range(2, tour.rows, 2100)
    tour.table.upsert(tour.trips(late, ts=4, fare="500"))
    try:
        tour.table.execute(plan)
    except ConflictError as error:
        check(len(tour.table.plans()), 0, "pending plans")
        return Outcome(f"the upsert won, plan {plan.instant} gave way to {error.beaten_by} and is off the timeline")
    raise TablekeeperError(
        "the tour expected the clustering to yield to the upsert, and it did not: please report this"
    )


def cluster(tour: Tour) -> Outcome:
    result = tour.table.cluster(order_by=["fare"])
    if result is None:
        raise TablekeeperError("the tour expected files to cluster, and found none: please report this")
    check(tour.table.read().count(), tour.expected_rows, "rows in the table")
    return Outcome(f"{result.file_groups} file groups became {len(result.files)}, {result.rows:,} rows sorted by fare")


def clean(tour: Tour) -> Outcome:
    result = tour.table.clean(keep_commits=1)
    if result is None:
        raise TablekeeperError("the tour expected old files to clean, and found none: please report this")
    check(tour.table.read().count(), tour.expected_rows, "rows in the table")
    return Outcome(f"{result.files_deleted} files that the last commit and its readers do not need are gone")


STEPS: tuple[Step[Tour], ...] = (
    Step("Create a merge-on-read table", create),
    Step("Bulk insert", bulk_insert),
    Step("Upsert: corrected fares and new trips", upsert),
    Step("Delete by key", delete),
    Step("Read it back", read_all),
    Step("Read with a filter", read_filtered),
    Step("Travel in time", travel),
    Step("See what changed", changes),
    Step("Read with Spark's own syntax", read_by_format),
    Step("Look at the timeline", timeline),
    Step("Look at the files", files),
    Step("Ask what a compaction would do", explain),
    Step("Compact: merge the logs into base files", compact),
    Step("Plan a clustering that yields to writers", yield_to_writer),
    Step("Clean: delete what nobody can ask for any more", clean),
    Step("Cluster: sort the rows", cluster),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the whole tour; 0 if it worked."""
    parser = argparse.ArgumentParser(
        prog="python -m tablekeeper.examples.demo", description="A tour of tablekeeper on local Spark."
    )
    parser.add_argument("--path", help="where to make the table (default: a new temporary directory)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to start with (default: %(default)s)")
    parser.add_argument("--only-table", action="store_true", help="leave out the lake and the service")
    given = parser.parse_args(arguments)
    if given.rows < 1000:
        parser.error("--rows: the tour needs at least 1000")
    console = Console(highlight=False)
    clock = SYSTEM_RUNTIME.clock
    began_s = clock.monotonic_s()
    path = given.path or tempfile.mkdtemp(prefix="tablekeeper-demo-")
    with tempfile.TemporaryDirectory(prefix="tablekeeper-spark-", ignore_cleanup_errors=True) as scratch:
        spark = _start(console, Path(scratch), clock)
        try:
            run_steps(Tour(spark, path, given.rows), console, steps=STEPS, clock=clock)
        except TablekeeperError as error:
            return _failed(error)
        finally:
            with console.status("Stopping Spark …"):
                spark.stop()
    if not given.only_table:
        try:
            _show_lake(console, clock, rows=given.rows // 5)
        except TablekeeperError as error:
            return _failed(error)
    _say_goodbye(console, path, seconds=clock.monotonic_s() - began_s)
    return 0


def _show_lake(console: Console, clock: Clock, *, rows: int) -> None:
    """The second half. Its tables are gone at the end."""
    console.print()
    console.print(Text("A lake of tables, and the service that keeps it", style="bold"))
    with tempfile.TemporaryDirectory(prefix="tablekeeper-lake-", ignore_cleanup_errors=True) as folder:
        began_s = clock.monotonic_s()
        with ExitStack() as stack:
            with console.status("Starting the Table Management Service …"):
                lake = stack.enter_context(served_lake(Path(folder), rows=rows))
            text = f"tablekeeper serve --allow {lake.folder / 'lake'}, at {lake.url}"
            report(console, "Start the service", Outcome(text), seconds=clock.monotonic_s() - began_s)
            run_steps(lake, console, steps=LAKE_STEPS, clock=clock, first=len(STEPS) + 1)
            stack.enter_context(console.status("Stopping the service …"))


def _failed(error: TablekeeperError) -> int:
    Console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
    return 1


def _start(console: Console, scratch: Path, clock: Clock) -> Any:
    began_s = clock.monotonic_s()
    with console.status("Starting Spark …"):
        # PySpark takes seconds to import: the spinner should turn by then.
        from tablekeeper.engine.spark_session import local_session  # noqa: PLC0415

        spark = local_session("tablekeeper-demo", scratch=scratch)
    report(console, "Start local Spark", Outcome(f"version {spark.version}"), seconds=clock.monotonic_s() - began_s)
    return spark


def _say_goodbye(console: Console, path: str, *, seconds: float) -> None:
    console.print()
    console.print(
        Text(f"Done in {seconds:.0f} s. ", style="bold green").append(f"The table is at {path}", style="default")
    )
    console.print("Try next:", style="dim")
    for command in (
        f"tablekeeper show {path}",
        f"tablekeeper read {path} --where \"city = 'lima' and fare > 1000\" --limit 5",
        f"tablekeeper timeline {path} --json",
        f"tablekeeper explain {path} clean",
        f"rm -r {path}",
    ):
        console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)


def _counts(result: WriteResult) -> str:
    numbers = {"inserted": result.rows_inserted, "updated": result.rows_updated, "deleted": result.rows_deleted}
    rows = ", ".join(f"{count:,} rows {verb}" for verb, count in numbers.items() if count)
    return f"{rows} in {len(result.files)} files, instant {result.instant}"


if __name__ == "__main__":
    sys.exit(main())
