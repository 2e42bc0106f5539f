"""Whatever is typed after `tablekeeper`, a command ends well, with one line about the error, or with its usage.

Commands and their parameters are read from the program itself, so that a new one is tried without being listed here.
A command that serves until it is stopped is left out, and so is `--debug`, which asks for a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from tablekeeper.cli.main import app
from tablekeeper.config.java_keys import CLAIMS, REFUSED
from tablekeeper.config.options import OPTIONS
from tests.support.table_builder import TableBuilder, trips

TABLE = "the table"
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "\x00",
            "\ud800",
            "a\x1b[31m",
            "-1",
            "0",
            "1",
            "1e400",
            "nan",
            "9" * 30,
            "id",
            "id,ts",
            "city = 'sf'",
            "city = ",
            "((((",
            "earliest",
            "20261115100000000",
            "99999999999999999999",
            "0001-01-01",
            "9999-12-31T23:59:59-14:00",
            "schedule",
            "execute",
            "hilbert",
            "compaction",
            "256MB",
            "--",
            "--json",
            "[red]",
            "a=b",
            "=",
        ]
    ),
    st.text(max_size=6),
)
PAIRS = st.builds(
    "{}={}".format, st.sampled_from(sorted(name for name in (*OPTIONS, *CLAIMS, *REFUSED) if "lock" not in name)), TEXTS
)
PLACES = st.one_of(st.just(TABLE), st.just(TABLE), st.sampled_from(["", ".", "/dev/null", "\x00", "s3://", "http://x"]))
# Waiting is no mistake, and nobody answers at this address.
FIXED = {"wait": "0", "url": "http://127.0.0.1:1"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, [each for each in command.params if each.name != "debug"]
        return
    for name, each in inner.items():
        if name != "serve":
            yield from commands(each, (*path, name))


COMMANDS = dict(commands(get_command(app)))


def value(data: st.DataObject, name: str) -> str:
    if name in FIXED:
        return FIXED[name]
    if name == "path":
        return data.draw(PLACES, label=name)
    if name in ("option", "storage_option"):
        return data.draw(st.one_of(PAIRS, TEXTS), label=name)
    return data.draw(TEXTS, label=name)


def typed(data: st.DataObject, parameters: list[Any]) -> list[str]:
    """Arguments for a command: all that it needs, and some of the others."""
    words: list[str] = []
    for parameter in parameters:
        if parameter.name not in FIXED and not parameter.required and data.draw(st.integers(0, 2)):
            continue
        if parameter.param_type_name == "argument":
            words.append(value(data, parameter.name))
        elif parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            words += [parameter.opts[0], value(data, parameter.name)]
    return words


@pytest.fixture(scope="module")
def tables() -> Iterator[TableBuilder]:
    builder = TableBuilder()
    yield builder
    builder.forget()


def refuse_tracebacks(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert "Traceback" not in result.output
    assert "error: unexpected" not in result.output, result.output
    assert result.exit_code == 0 or result.stderr.strip(), "it says why"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_line_ends_in_a_traceback(tables: TableBuilder, command: tuple[str, ...]) -> None:
    @settings(max_examples=5, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        words = typed(data, COMMANDS[command])
        refuse_tracebacks([*command, *(table.path if word == TABLE else word for word in words)])

    table = tables.create(table_type="mor")
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 2.0)))
    table.upsert(trips(("a", "sf", 2, 3.0)))
    attempt()


@pytest.mark.parametrize(
    "words", [[], ["nonsense"], ["--nonsense"], ["show"], ["show", "a", "b"], ["service"], ["timeline", "x", "--limit"]]
)
def test_a_wrong_call_shows_the_usage_or_the_error(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 or (not words and result.exit_code == 0)
    assert "Usage" in result.output or "Error" in result.output
