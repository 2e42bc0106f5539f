"""The commands for the terminal, run in this process against tables in memory."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tablekeeper import Table, WriteResult
from tablekeeper.cli.main import app
from tablekeeper.config.options import OPTIONS
from tablekeeper.storage import MemoryStorage, forget_memory

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
ROWS = [
    {"id": "t1", "city": "sf", "ts": 1, "fare": 12.5},
    {"id": "t2", "city": "sf", "ts": 1, "fare": 8.0},
    {"id": "t3", "city": "nyc", "ts": 1, "fare": None},
]


@pytest.fixture
def path() -> Iterator[str]:
    name = f"cli-{uuid4()}"
    yield f"memory://{name}/trips"
    forget_memory(name)


@pytest.fixture
def first(path: str) -> WriteResult:
    """A merge-on-read table of three trips; the result of the commit that wrote them."""
    table = Table.create(
        path, name="trips", schema=SCHEMA, key="id", partition_by="city", ordering="ts", engine="local"
    )
    return table.insert(pa.Table.from_pylist(ROWS, schema=SCHEMA))


def update(path: str) -> WriteResult:
    changed = [{"id": "t1", "city": "sf", "ts": 2, "fare": 99.0}]
    return Table.open(path, engine="local").upsert(pa.Table.from_pylist(changed, schema=SCHEMA))


def run(*arguments: str, width: int = 200) -> Result:
    return CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1"}).invoke(app, list(arguments))


def lines(*arguments: str) -> list[dict[str, object]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_show_tells_what_the_table_is_and_what_each_column_is_for(path: str, first: WriteResult) -> None:
    result = run("show", path)
    words = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert ["table", "trips"] in words
    assert ["last", "commit", str(first.instant)] in words
    assert ["id", "string", "key"] in words
    assert ["city", "string", "partition"] in words
    assert ["ts", "int64", "ordering"] in words


def test_show_gives_one_json_document(path: str, first: WriteResult) -> None:
    document = json.loads(run("show", path, "--json").stdout)
    assert document["name"] == "trips"
    assert document["table_type"] == "mor"
    assert (document["key"], document["partition_by"], document["ordering"]) == (["id"], ["city"], ["ts"])
    assert document["columns"] == {"id": "string", "city": "string", "ts": "int64", "fare": "double"}
    assert document["commits"] == 1
    assert document["last_commit"] == str(first.instant)


def test_timeline_lists_the_instants_oldest_first(path: str, first: WriteResult) -> None:
    second = update(path)
    facts = lines("timeline", path)
    assert [fact["requested_at"] for fact in facts] == [str(first.instant), str(second.instant)]
    assert [fact["completed_at"] for fact in facts] == [str(first.completed_at), str(second.completed_at)]
    assert {(fact["action"], fact["state"]) for fact in facts} == {("deltacommit", "completed")}
    printed = run("timeline", path).stdout
    assert printed.index(str(first.instant)) < printed.index(str(second.instant))


def test_timeline_with_a_limit_shows_the_newest_and_counts_the_rest(path: str, first: WriteResult) -> None:
    second = update(path)
    assert [fact["requested_at"] for fact in lines("timeline", path, "--limit", "1")] == [str(second.instant)]
    printed = run("timeline", path, "--limit", "1").stdout
    assert str(first.instant) not in printed
    assert "1 instant, 1 older not shown" in printed


def test_timeline_of_a_healthy_table_has_nothing_pending(path: str, first: WriteResult) -> None:
    assert lines("timeline", path, "--pending") == []
    assert "0 instants" in run("timeline", path, "--pending").stdout


def test_files_shows_base_files_and_logs_of_each_group(path: str, first: WriteResult) -> None:
    update(path)
    facts = {fact["partition"]: fact for fact in lines("files", path)}
    assert sorted(map(str, facts)) == ["nyc", "sf"]
    assert facts["nyc"]["log_files"] == []
    assert len(facts["sf"]["log_files"]) == 1  # type: ignore[arg-type]
    assert "2 file groups in 2 partitions, 1 log file" in run("files", path).stdout


def test_files_can_be_narrowed_to_a_partition_and_to_a_moment(path: str, first: WriteResult) -> None:
    update(path)
    assert [fact["partition"] for fact in lines("files", path, "--partition", "nyc")] == ["nyc"]
    then = lines("files", path, "--partition", "sf", "--as-of", str(first.instant))
    assert [fact["log_files"] for fact in then] == [[]]


def test_read_prints_rows_with_numbers_to_the_right_and_nulls_named(path: str, first: WriteResult) -> None:
    printed = run("read", path, "--columns", "id,fare", "--where", "ts = 1").stdout.splitlines()
    assert printed[0] == "id  fare"
    assert sorted(printed[1:4]) == ["t1  12.5", "t2   8.0", "t3  null"]
    assert printed[4] == "3 rows"


def test_read_filters_chooses_columns_and_travels_in_time(path: str, first: WriteResult) -> None:
    update(path)
    assert lines("read", path, "--where", "city = 'sf' and fare > 90") == [
        {"id": "t1", "city": "sf", "ts": 2, "fare": 99.0}
    ]
    then = lines("read", path, "--where", "id = 't1'", "--columns", "fare,id", "--as-of", str(first.instant))
    assert [list(row.items()) for row in then] == [[("fare", 12.5), ("id", "t1")]]


def test_read_optimized_leaves_out_what_is_in_logs(path: str, first: WriteResult) -> None:
    update(path)
    rows = lines("read", path, "--where", "id = 't1'", "--mode", "read_optimized")
    assert [row["fare"] for row in rows] == [12.5]


def test_read_since_an_instant_gives_the_rows_changed_after_it(path: str, first: WriteResult) -> None:
    update(path)
    assert [row["id"] for row in lines("read", path, "--since", str(first.instant))] == ["t1"]
    assert len(lines("read", path, "--until", str(first.instant))) == 3


def test_a_limit_cuts_the_rows_and_says_that_there_are_more(path: str, first: WriteResult) -> None:
    result = run("read", path, "--limit", "2")
    assert len(result.stdout.splitlines()) == 4
    assert "2 rows shown, and there are more" in result.stdout
    assert "more" not in run("read", path, "--limit", "3").stdout
    assert len(lines("read", path, "--limit", "2")) == 2
    assert len(lines("read", path, "--limit", "0")) == 3
    assert len(lines("read", path, "--limit", str(10**30))) == 3


def test_meta_columns_are_shown_on_request(path: str, first: WriteResult) -> None:
    rows = lines("read", path, "--meta-columns", "--where", "id = 't3'")
    assert rows[0]["_hoodie_record_key"] == "t3"
    assert rows[0]["_hoodie_commit_time"] == str(first.instant)


def test_columns_that_do_not_fit_are_counted_and_named(path: str) -> None:
    wide = pa.table({"id": ["a"], **{f"column_{n:02d}": ["x" * 30] for n in range(10)}})
    Table.create(path, name="wide", schema=wide.schema, key="id", engine="local").insert(wide)
    printed = run("read", path, width=80).stdout.splitlines()
    assert max(map(len, printed[:2])) <= 80
    assert printed[0].split() == ["id", "column_00", "column_01"]
    assert printed[3].startswith("8 columns not shown: column_02, column_03, ")


def test_long_cells_are_cut(path: str) -> None:
    long = pa.table({"id": ["a"], "text": ["word\n" * 50]})
    Table.create(path, name="long", schema=long.schema, key="id", engine="local").insert(long)
    row = run("read", path).stdout.splitlines()[1]
    assert row.split(maxsplit=1)[1] == (r"word\n" * 8)[:39] + "…"


def test_text_that_looks_like_markup_is_printed_as_it_is(path: str) -> None:
    rows = pa.table({"id": ["[bold]a[/bold]"], "n": [1]})
    Table.create(path, name="marks", schema=rows.schema, key="id", engine="local").insert(rows)
    assert [line.split() for line in run("read", path).stdout.splitlines()[:2]] == [
        ["id", "n"],
        ["[bold]a[/bold]", "1"],
    ]


def test_every_type_has_a_json_form(path: str) -> None:
    moment = dt.datetime(2026, 11, 15, 10, 0, 0, 123456, tzinfo=dt.UTC)
    columns = {
        "id": pa.array(["a"]),
        "amount": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
        "at": pa.array([moment], pa.timestamp("us", tz="UTC")),
        "day": pa.array([moment.date()]),
        "raw": pa.array([b"\x00\xff"]),
        "flag": pa.array([True]),
        "ratio": pa.array([float("nan")]),
        "tags": pa.array([["x", None]], pa.list_(pa.string())),
        "counts": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "place": pa.array([{"lat": 1.5, "on": moment.date()}]),
        "none": pa.array([None], pa.int32()),
    }
    rows = pa.table(columns)
    Table.create(path, name="types", schema=rows.schema, key="id", engine="local").insert(rows)
    assert lines("read", path) == [
        {
            "id": "a",
            "amount": "1.50",
            "at": "2026-11-15T10:00:00.123456+00:00",
            "day": "2026-11-15",
            "raw": "AP8=",
            "flag": True,
            "ratio": "NaN",
            "tags": ["x", None],
            "counts": {"a": 1},
            "place": {"lat": 1.5, "on": "2026-11-15"},
            "none": None,
        }
    ]


def test_an_error_is_one_line_on_stderr_and_exit_code_1(path: str) -> None:
    result = run("show", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "is not a Hudi table" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--where", "nowhere = 1"], "nowhere"),
        (["--where", "city ="], "city"),
        (["--columns", "id,nothing"], "'nothing'"),
        (["--as-of", "yesterday"], "'yesterday' is not a moment"),
        (["--storage-option", "colour=blue"], "colour"),
    ],
)
def test_a_request_that_makes_no_sense_is_named(
    path: str, first: WriteResult, arguments: list[str], reason: str
) -> None:
    result = run("read", path, *arguments)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_a_bug_is_reported_in_one_line_too(path: str, first: WriteResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(table: Table) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Table, "describe", broken)
    result = run("show", path)
    assert result.exit_code == 1
    assert (
        result.stderr
        == "error: unexpected ZeroDivisionError: by zero. Run again with --debug to see where it comes from.\n"
    )


def test_debug_lets_the_error_out(path: str) -> None:
    result = run("show", path, "--debug")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "InvalidRequestError"


@pytest.mark.parametrize(
    "arguments",
    [
        ["read"],
        ["read", "memory://x/y", "--limit", "-1"],
        ["read", "memory://x/y", "--mode", "sideways"],
        ["read", "memory://x/y", "--since", "20260101000000000", "--as-of", "20260101000000000"],
        ["show", "memory://x/y", "--storage-option", "region"],
        ["paint", "memory://x/y"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["show", "timeline", "files", "read"])
def test_help_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    assert f"tablekeeper {command} /lake/trips" in result.stdout


def test_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "tablekeeper")


def test_the_commands_need_no_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from tablekeeper.cli.main import app; app(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tablekeeper ")


HOSTILE = "a\x1b[31m\r\n\u202eb"


def test_control_characters_of_cells_names_and_errors_are_shown_and_not_obeyed(path: str) -> None:
    schema = pa.schema([("id", pa.string()), ("city", pa.string())])
    table = Table.create(path, name=HOSTILE, schema=schema, key="id", engine="local")
    table.insert(pa.table({"id": [HOSTILE], "city": ["sf"]}))
    shown = r"a\x1b[31m\r\n\u202eb"
    for arguments in (["read", path], ["show", path]):
        output = run(*arguments).stdout
        assert shown in output
        assert not {"\x1b", "\r", "\u202e"} & set(output)
    failed = run("read", path, "--where", f"`{HOSTILE}` = 1")
    assert failed.exit_code == 1
    assert "\x1b" not in failed.output
    assert lines("read", path) == [{"id": HOSTILE, "city": "sf"}]


def test_commands_that_only_read_by_the_documentation_change_nothing(path: str, first: WriteResult) -> None:
    update(path)
    storage = MemoryStorage(path)
    before = {file.path: storage.read(file.path) for file in storage.walk("")}
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    looks = re.findall(r"`([a-z-]+)`", page.partition("only read:")[2].partition("without")[0])
    assert {"show", "timeline", "files", "read", "plans", "explain", "locks", "heartbeats", "doctor"} == set(looks)
    calls = [[name, path, *(["clustering"] if name == "explain" else [])] for name in looks]
    calls += [[name, path, "--dry-run"] for name in ("clean", "archive")]
    calls += [["savepoint", path, "--list"], ["doctor", path, "--fix", "--dry-run"], ["doctor", path, "--deep"]]
    for words in calls:
        assert run(*words).exit_code == 0, words
        assert {file.path: storage.read(file.path) for file in storage.walk("")} == before, words


def test_options_lists_all_options_or_those_with_a_word() -> None:
    everything = lines("options")
    assert [fact["name"] for fact in everything] == sorted(OPTIONS)
    found = run("options", "bucket.index.num").stdout
    assert "hoodie.bucket.index.num.buckets (int, default 4)" in found
    assert "clustering" not in found
    unknown = run("options", "nothing-is-called-so")
    assert unknown.exit_code == 1
    assert "'nothing-is-called-so'" in unknown.stderr


def test_a_name_that_no_utf8_has_is_refused_before_the_service_is_asked() -> None:
    for words in (["service", "show", "\ud800"], ["service", "operations", "--status", "\udcff"]):
        failed = run(*words, "--url", "http://127.0.0.1:1")
        assert failed.exit_code == 1
        assert "\\ud" in failed.stderr
        assert "unexpected" not in failed.stderr
