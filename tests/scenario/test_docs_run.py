"""Every code block of the README and of the documentation runs as it is printed.

The blocks of a page share one namespace and a lake of their own: `/lake` and `s3://lake` are a new directory, with a
table `trips` in it unless the page makes it. Names that a page takes for granted (`t`, `df`, `keys`, …) are given.
Pages that speak of Spark get the Spark session, the others the local engine. Commands of `tablekeeper` run in this
process and must end well; of `make` and `pip` only what they name is looked up, and of commands that are or need a
running service whether they and their options are there. What is no code is marked `text`.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tablekeeper as tk
from tablekeeper.cli.main import app
from tablekeeper.storage import open_storage
from tests.support.fake_runtime import fake_runtime

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SPARK_PAGES = ("README.md", "quickstart.md", "reading.md", "services.md", "writing.md")
# Pages that make the table themselves.
MAKING_PAGES = ("README.md", "quickstart.md")
# Blocks that need what this environment does not have, by a word in them, and where they are tried instead.
ELSEWHERE = {
    "from hudi import": "tests/interop/test_judges.py",
    "tablekeeper locks s3://lake/trips": "tests/contract/test_zookeeper_lock.py",
    "enable_service_manager(spark": "tests/interop/test_service_java_client.py",
    "curl http://localhost:9091/v1/tables --json": "tests/server/test_docs_examples.py",
}
RUNNABLE = ("python", "console", "sql", "toml", "text")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("city", pa.string()),
        ("ts", pa.int64()),
        ("fare", pa.float64()),
        ("lat", pa.float64()),
        ("lon", pa.float64()),
    ]
)
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, text.count("\n", 0, found.start()) + 1, found.group(2), found.group(3))
        for found in _BLOCK.finditer(text)
    ]


def elsewhere(block: Block) -> str | None:
    return next((test for word, test in ELSEWHERE.items() if word in block.code), None)


def rows(*values: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in values], schema=SCHEMA)


ROWS = rows(
    ("t1", "sf", 11, 25.0, 37.7, -122.4), ("t2", "sf", 12, 8.0, 37.8, -122.5), ("t3", "nyc", 13, 9.0, 40.7, -74.0)
)


class Lake:
    """The place of one page's tables, and what its code finds."""

    def __init__(self, place: Path, page: str, spark: Any = None) -> None:
        self.place = place
        self.spark = spark
        self.names: dict[str, Any] = {"tk": tk, "path": str(place / "lake" / "new"), "schema": SCHEMA}
        df: Any = ROWS
        if spark is not None:
            df = spark.createDataFrame(
                ROWS.to_pandas(), "id string, city string, ts long, fare double, lat double, lon double"
            )
            self.names["spark"] = spark
        self.names |= {"df": df, "keys": df.select("id", "city") if spark is not None else df.select(["id", "city"])}
        if page not in MAKING_PAGES:
            self._make_table(df)

    def _make_table(self, df: Any) -> None:
        chosen: dict[str, Any] = {"engine": "local"} if self.spark is None else {"spark": self.spark}
        path = self.place / "lake" / "trips"
        # Years ago, so that pages can ask for the table as it was on a day that they name.
        runtime, clock = fake_runtime()
        local = tk.Table.create(
            path,
            name="trips",
            schema=SCHEMA,
            key="id",
            partition_by="city",
            ordering="ts",
            engine="local",
            runtime=runtime,
        )
        a = local.upsert(ROWS)
        clock.advance(60)
        b = local.upsert(ROWS)
        self.names |= {"t": tk.Table.open(path, **chosen), "a": a, "b": b, "r": b}
        if self.spark is not None:
            df.coalesce(1).write.parquet(str(self.place / "arriving"))
            self.names["stream"] = self.spark.readStream.schema(df.schema).parquet(str(self.place / "arriving"))

    def redirected(self, code: str) -> str:
        """The code with paths of this lake in the place of those of the page."""
        code = re.sub(r"(?<![\w/])/(lake|checkpoints)/", f"{self.place}/\\1/", code)
        return code.replace("file:///lake/", f"file://{self.place}/lake/")

    def open_storage(self, location: Any, *, options: Any = None, **others: Any) -> Any:
        if isinstance(location, str) and location.startswith("s3://lake/"):
            location, options = str(self.place / location.removeprefix("s3://")), None
        return open_storage(location, options=options, **others)

    def run(self, block: Block) -> None:
        runners: dict[str, Callable[[Block], None]] = {
            "python": self._run_python,
            "console": self._run_console,
            "sql": self._run_sql,
            "toml": self._run_toml,
        }
        if block.language in runners and elsewhere(block) is None:
            runners[block.language](block)

    def _run_python(self, block: Block) -> None:
        # Line numbers of the page, for whoever looks for a failure.
        code = compile("\n" * block.line + self.redirected(block.code), block.page, "exec")
        exec(code, self.names)

    def _run_console(self, block: Block) -> None:
        for line in self.redirected(block.code.replace("\\\n", " ")).splitlines():
            command = shlex.split(line, comments=True)
            if command[:2] in (["tablekeeper", "serve"], ["tablekeeper", "service"]):
                assert not unknown_options(command[1:]), f"{block.page}:{block.line}: {line}"
            elif command[:1] == ["tablekeeper"]:
                result = CliRunner().invoke(app, command[1:])
                assert result.exit_code == 0, f"{block.page}:{block.line}: {line}\n{result.output}"
            elif command:
                assert is_there(command), f"{block.page}:{block.line}: {line}"

    def _run_toml(self, block: Block) -> None:
        assert tomllib.loads(block.code)

    def _run_sql(self, block: Block) -> None:
        for statement in self.redirected(block.code).split(";"):
            if statement.strip():
                self.spark.sql(statement).collect()


def unknown_options(arguments: list[str]) -> set[str]:
    """The options that the command does not know; `KeyError` if there is no such command."""
    command: Any = get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    return {argument for argument in rest if argument.startswith("--")} - known


def is_there(command: list[str]) -> bool:
    """Whether the target or the extras exist that `make …` or `pip install …` name."""
    if command[0] == "make":
        return all(f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8") for target in command[1:])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.fullmatch(r"(?:\.|tablekeeper)(?:\[([\w,-]+)\])?", command[-1])
    return command[:2] == ["pip", "install"] and named is not None and set((named[1] or "").split(",")) <= {"", *extras}


def run_page(page: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablekeeper.table.table.open_storage", lake.open_storage)
    for block in blocks(page):
        lake.run(block)


LOCAL = [page for page in PAGES if page.name not in SPARK_PAGES and blocks(page)]


@pytest.mark.parametrize("page", LOCAL, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, Lake(tmp_path, page.name), monkeypatch)


def test_every_block_says_what_it_is() -> None:
    odd = [f"{each.page}:{each.line}" for page in PAGES for each in blocks(page) if each.language not in RUNNABLE]
    assert odd == []
    assert sum(len(blocks(page)) for page in PAGES) > 30, "blocks are found"


def test_blocks_that_run_elsewhere_name_a_test_and_are_still_there() -> None:
    found = [elsewhere(block) for page in PAGES for block in blocks(page)]
    for test in ELSEWHERE.values():
        assert found.count(test) == 1
        assert (ROOT / test).exists()


def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "README.md")
    for language, code in (
        ("python", "tk.Table.open('/lake/none', engine='local')"),
        ("console", "tablekeeper show /lake/none"),
        ("console", "make no-such-target"),
        ("console", "pip install '.[no-such-extra]'"),
        ("console", "tablekeeper serve --no-such-option"),
        ("console", "tablekeeper service no-such-command"),
        ("toml", "limits = "),
    ):
        with pytest.raises((tk.InvalidRequestError, AssertionError, KeyError, tomllib.TOMLDecodeError)):
            lake.run(Block("README.md", 1, language, code))
