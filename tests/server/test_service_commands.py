"""Every command of `tablekeeper service` on a real service, for people and as JSON; what it prints moves no cursor."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from typer.testing import CliRunner

from tablekeeper import Table
from tablekeeper.cli.json_text import json_document
from tablekeeper.cli.main import app
from tablekeeper.cli.service_views import show_events, show_log, show_operation, show_tables
from tablekeeper.client import ServiceClient, ServiceUnreachableError
from tests.support.pretended_service import pretended, says
from tests.support.served import running_service

NASTY = "red \x1b[31m back \x9b2J"
HARMLESS = "red \\x1b[31m back \\x9b2J"
Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, lake: Path, table: Table) -> Iterator[Command]:
    """Runs a command on a service that looks after `db.trips` and has no slot to run anything; what it printed."""
    with running_service(tmp_path / "service", allow=lake, arguments=("--slots", "0")) as served:

        def run(*arguments: str) -> str:
            runner = CliRunner(env={"COLUMNS": "300", "NO_COLOR": "1"})
            done = runner.invoke(app, ["service", *arguments, "--url", served.url])
            assert done.exit_code == 0, (arguments, done.output)
            return done.stdout

        run("add", str(lake / "trips"), "--db", "db")
        yield run


def test_every_command_prints_a_text_and_json(command: Command, lake: Path) -> None:
    number = json.loads(command("run", "db.trips", "clean", "--json"))["operation_id"]
    commands: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
        (("tables",), "db.trips", lambda said: said["table_name"] == "trips"),
        (("operations",), "clean", lambda said: said["operation_id"] == number),
        (("show", "db.trips"), "compact_after_commits", lambda said: said["operations"] != []),
        (("show", str(number)), "local asked for it", lambda said: said["attempts"] == []),
        (("explain", str(number)), "It waits", lambda said: said["reasons"] != []),
        (("logs", str(number)), "", lambda said: said["log"] == ""),
        (("pause", "db.trips"), "paused", lambda said: said["paused"] is True),
        (("pause", "db.trips", "--resume"), "looked after again", lambda said: said["paused"] is False),
        (("instances",), "instance_id", lambda said: said["slots"] == 0),
        (("queues",), "default", lambda said: said["queue"] == "default"),
        (("rebuild", str(lake), "--db", "db"), "1 tables registered", lambda said: said["tables"] == 1),
    )
    for arguments, part, holds in commands:
        assert part in command(*arguments)
        assert holds(json.loads(command(*arguments, "--json"))), arguments
    cancelled = json.loads(command("cancel", str(number), "--reason", "enough", "--json"))
    assert (cancelled["status"], "enough" in command("show", str(number))) == ("cancelled", True)
    assert json.loads(command("retry", str(number), "--json"))["status"] == "pending"
    assert json.loads(command("clear", "db.trips", "--json"))["cleared"] >= 1
    assert json.loads(command("remove", "db.trips", "--json")) == {"removed": "db.trips"}
    assert json.loads(command("add", str(lake), "--recursive", "--json"))["db_name"] == "default"
    assert [command("alarms", "--json"), command("tokens", "--json")] == ["", ""]
    assert command("events", "--json") == ""
    assert "why" in command("events", "--limit", "5")
    assert "id" in command("alarms")
    assert "role" in command("tokens")


def test_what_an_attempt_printed_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    show_log(7, f"one\ttab\r\n{NASTY}\n", as_json=False)
    assert capsys.readouterr().out == f"one\ttab\n{HARMLESS}\n"
    show_log(7, NASTY, as_json=True)
    printed = capsys.readouterr().out
    assert printed.strip().isprintable()
    assert json.loads(printed)["log"] == NASTY


def test_what_is_told_of_an_operation_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    texts = dict.fromkeys(
        ("table", "action", "instant", "status", "note", "why", "queue", "owner", "engine", "cancel_reason"), NASTY
    )
    numbers = dict.fromkeys(
        ("operation_id", "priority", "failures", "run_times", "create_ms", "update_ms", "deadline_ms"), 1
    )
    attempt = {"number": 1, "outcome": "failed", "engine": "arrow", "instance": NASTY, "message": NASTY}
    times = {"started_ms": 1_000, "ended_ms": 3_500}
    show_operation({**texts, **numbers, "estimate": {"saves": NASTY}, "attempts": [{**attempt, **times}]})
    printed = capsys.readouterr().out
    assert HARMLESS in printed
    assert "2.5 s" in printed
    assert printed.replace("\n", "").isprintable()


def test_what_happened_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    event = {"at_ms": 1_000, "table": NASTY, "operation_id": 42, "kind": "failed", "text": NASTY}
    show_events([event, {**event, "table": "", "operation_id": None}], as_json=False)
    printed = capsys.readouterr().out
    assert "1970-01-01 00:00:01 UTC" in printed
    assert HARMLESS in printed
    assert printed.replace("\n", "").isprintable()


def test_events_are_asked_for_by_table_operation_and_number() -> None:
    event = {"event_id": 3, "at_ms": 1_000, "table": "db.trips", "operation_id": 42, "kind": "failed", "text": NASTY}
    with pretended(says(json.dumps({"events": [event], "next": None}).encode())) as (address, answers):
        for options in ([], ["--json"]):
            arguments = ["service", "events", "db.trips", "--operation", "42", "--limit", "7", *options]
            done = CliRunner().invoke(app, [*arguments, "--url", address])
            assert done.exit_code == 0, done.output
    wanted = {"db_name": "db", "table_name": "trips", "operation": "42", "after": "0", "limit": "7"}
    assert answers.asked == [("/v1/events", wanted)] * 2
    assert json.loads(done.stdout) == event


def test_json_for_programs_says_the_same_without_control_characters() -> None:
    given = {"text": f"{NASTY} \u202e ä 漢"}
    printed = json_document(given)
    assert printed.isprintable()
    assert "ä 漢" in printed
    assert json.loads(printed) == given


@pytest.mark.parametrize("command", ["tables", "queues", "instances", "alarms", "top", "show 1", "logs 1"])
@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[]"])
def test_an_address_where_something_else_listens_is_told(command: str, body: bytes) -> None:
    kind = "text/html" if body.startswith(b"<") else "application/json"
    with pretended(says(body, Content_Type=kind)) as (address, _):
        done = CliRunner().invoke(app, ["service", *command.split(), "--url", address])
    assert done.exit_code == 1
    assert "is this the address of a tablekeeper service?" in done.output


def test_a_door_that_stays_shut_says_where_its_key_is_looked_for() -> None:
    refused = json.dumps({"error": {"code": "unauthenticated", "message": "this service wants a token"}}).encode()
    with pretended(says(refused, status=401, Content_Type="application/json")) as (address, _):
        done = CliRunner().invoke(app, ["service", "tables", "--url", address])
    assert "this service wants a token. The token is taken from the variable TABLEKEEPER_TOKEN." in done.output


def test_a_certificate_that_is_not_trusted_is_told_from_a_service_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise URLError(ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"))

    client = ServiceClient(["https://localhost:1"])
    monkeypatch.setattr(ServiceClient, "_exchange", refuse)
    with pytest.raises(ServiceUnreachableError, match="SSL_CERT_FILE") as caught:
        client.get("/v1/tables")
    assert "Is it running?" not in str(caught.value)


def test_the_state_of_a_table_is_told_in_the_words_of_the_pages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    facts = {"commits_behind": 3, "behind_since_ms": 1_795_000_000_000, "pending_plans": 0}
    table = {"db_name": "db", "base_path": "/lake", "queue": "q", "priority": 5, "quarantine": "", "paused": False}
    seen: dict[str, dict[str, Any]] = {
        "slow": {"facts": facts},
        "fast": {"facts": {**facts, "behind_since_ms": None}},
        "idle": {"facts": facts, "paused": True},
        "sick": {"facts": facts, "quarantine": "unreadable"},
    }
    show_tables([{**table, "table_name": name, **more} for name, more in seen.items()], as_json=False)
    states = {line.split()[0]: set(line.split()) for line in capsys.readouterr().out.splitlines() if "db." in line}
    words = {"slow": "behind", "fast": "active", "idle": "paused", "sick": "quarantined"}
    assert {name: states[f"db.{name}"] & set(words.values()) for name in words} == {n: {w} for n, w in words.items()}
