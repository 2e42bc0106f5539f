"""Alarms on their way to real receivers: an HTTP server and a mail server in this process."""

from __future__ import annotations

import email
import json
import logging
from collections.abc import Iterator
from email import policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import open_service
from tablekeeper.server.model import Alarm, Delivery
from tablekeeper.server.observe.channels import load_channels, parse_channels
from tablekeeper.server.observe.delivery import MOST_TRIES, AlarmDelivery, mail_of, slack_of, webhook_of
from tablekeeper.server.settings import AlarmChannel, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewAlarm
from tablekeeper.server.store.sql import SqlJobStore, open_store
from tests.server.conftest import StoreClock
from tests.support.served import free_port

SECRET = "T000-very-secret"
MAIL = '[[channel]]\nkind="email"\ntarget="a@b"'


class HttpReceiver:
    """Keeps what is posted; answers what it is told to."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status = receiver.answers.pop(0) if receiver.answers else 200
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if status == 200:
                    receiver.got.append(body)
                    receiver.headers.append(dict(self.headers))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    made = HttpReceiver()
    pool = SYSTEM_RUNTIME.threads.pool(1, name="receiver")
    serving = pool.submit(made.server.serve_forever, 0.05)
    yield made
    made.server.shutdown()
    serving.result()
    made.server.server_close()
    pool.shutdown(wait=True)


class MailBox:
    def __init__(self) -> None:
        self.got: list[Any] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 (aiosmtpd's name)
        self.got.append(email.message_from_bytes(envelope.content, policy=policy.default))
        return "250 taken"


def delivery_to(store: SqlJobStore, *channels: AlarmChannel) -> AlarmDelivery:
    return AlarmDelivery(store, channels, timing=Timing(), address="http://keeper:9091", jitter=lambda: 0.0)


def names(*channels: AlarmChannel) -> list[str]:
    return [channel.name for channel in channels]


def test_a_webhook_gets_the_alarm_and_its_end_once_each(store: SqlJobStore, receiver: HttpReceiver) -> None:
    (hook,) = parse_channels([f"webhook={receiver.url}"])
    sender = delivery_to(store, hook)
    store.open_alarm(NewAlarm("failed:7", "failed", "compaction failed", names(hook)))
    assert sender.run_once() == 1
    store.resolve_alarm("failed:7", channels=names(hook))
    assert sender.run_once() == 1
    assert sender.run_once() == 0
    opened, resolved = receiver.got
    assert (opened["state"], opened["rule"], opened["text"]) == ("opened", "failed", "compaction failed")
    assert opened["resolved_ms"] is None
    assert (resolved["state"], resolved["alarm_id"]) == ("resolved", opened["alarm_id"])
    assert resolved["resolved_ms"] >= resolved["opened_ms"]


def test_a_receiver_that_refuses_is_tried_again_later_and_never_overtaken(
    store: SqlJobStore, store_clock: StoreClock, receiver: HttpReceiver
) -> None:
    (hook,) = parse_channels([f"webhook={receiver.url}"])
    sender = delivery_to(store, hook)
    receiver.answers = [500, 302]
    store.open_alarm(NewAlarm("failed:7", "failed", "x", names(hook)))
    assert sender.run_once() == 0
    store.resolve_alarm("failed:7", channels=names(hook))
    assert sender.run_once() == 0
    assert receiver.got == [], "neither the retry before its time nor the resolved message"
    store_clock.advance(Timing().back_off_s)
    assert sender.run_once() == 0
    store_clock.advance(2 * Timing().back_off_s)
    assert sender.run_once() == 1
    assert sender.run_once() == 1
    assert [each["state"] for each in receiver.got] == ["opened", "resolved"]


def test_a_message_outlives_a_restart_and_a_receiver_that_is_away(tmp_path: Path, receiver: HttpReceiver) -> None:
    url = f"sqlite:///{tmp_path / 'service.db'}"
    clock = StoreClock()
    away = AlarmChannel("webhook", "webhook", f"http://127.0.0.1:{free_port()}/")
    first = open_store(url, now_ms=clock.expression)
    first.migrate()
    first.open_alarm(NewAlarm("failed:7", "failed", "x", ["webhook"]))
    assert delivery_to(first, away).run_once() == 0
    # This one dies with the message in its hands.
    clock.advance(3600)
    assert len(first.claim_deliveries(10, hold_s=60)) == 1
    first.close()
    clock.advance(60)
    second = open_store(url, now_ms=clock.expression)
    try:
        assert delivery_to(second, *parse_channels([f"webhook={receiver.url}"])).run_once() == 1
        assert [each["state"] for each in receiver.got] == ["opened"]
    finally:
        second.close()


def test_what_cannot_be_delivered_is_given_up_in_the_end(jobs: SqlJobStore, caplog: pytest.LogCaptureFixture) -> None:
    jobs.open_alarm(NewAlarm("k", "failed", "x", ["gone"]))
    (claimed,) = jobs.claim_deliveries(1, hold_s=0)
    for _ in range(MOST_TRIES - 1):
        jobs.finish_delivery(claimed, retry_in_s=0)
    assert delivery_to(jobs).run_once() == 0
    assert "given up after 100 tries" in caplog.text
    assert jobs.claim_deliveries(10, hold_s=0) == []


def test_a_message_that_cannot_be_sent_neither_holds_up_the_others_nor_shows_what_it_carries(
    jobs: SqlJobStore, receiver: HttpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    # As a channel that no check foresaw: the client refuses this header.
    odd = AlarmChannel("odd", "webhook", receiver.url, {"authorization": f"Bearer {SECRET}\n…"})
    (hook,) = parse_channels([f"webhook={receiver.url}"])
    jobs.open_alarm(NewAlarm("k", "failed", "x", names(odd, hook)))
    assert delivery_to(jobs, odd, hook).run_once() == 1
    assert len(receiver.got) == 1
    assert "the message cannot be sent: UnicodeEncodeError" in caplog.text
    assert SECRET not in caplog.text


def test_messages_lead_to_what_they_are_about_and_mail_has_a_date_and_a_short_subject() -> None:
    alarm = Alarm(1, "failed:7", "failed", "compaction of a.b failed: " + "long " * 60, opened_ms=0, operation_id=7)
    delivery = Delivery(1, alarm, "c", False, 0, 0)
    assert webhook_of(delivery, "https://keeper")["link"] == "https://keeper/operations/7"
    assert str(slack_of(delivery, "https://keeper")["text"]).endswith("(https://keeper/operations/7)")
    mail = mail_of(delivery, "https://keeper", to="a@b")
    assert mail["Date"] == "Thu, 01 Jan 1970 00:00:00 +0000"
    assert len(mail["Subject"]) < 150
    assert mail["Subject"].endswith("…")
    assert "https://keeper/operations/7" in mail.get_content()


def test_slack_gets_one_line_in_which_names_mean_nothing(jobs: SqlJobStore, receiver: HttpReceiver) -> None:
    (slack,) = parse_channels([f"slack={receiver.url}"])
    jobs.open_alarm(NewAlarm("k", "late", "<!channel> & <b>", names(slack)))
    assert delivery_to(jobs, slack).run_once() == 1
    (got,) = receiver.got
    assert got == {"text": "*opened* [late] &lt;!channel&gt; &amp; &lt;b&gt; (http://keeper:9091/alarms)"}


def test_people_get_mail_about_the_alarm_and_about_its_end(jobs: SqlJobStore) -> None:
    box = MailBox()
    server = Controller(box, hostname="127.0.0.1", port=free_port())
    server.start()
    try:
        (mail,) = parse_channels(["email=ops@example.org"], smtp=f"127.0.0.1:{server.port}")
        text = "trips failed\r\nBcc: thief@example.org \x1b[31m é"
        jobs.open_alarm(NewAlarm("k", "failed", text, names(mail)))
        jobs.resolve_alarm("k", channels=names(mail))
        sender = delivery_to(jobs, mail)
        assert sender.run_once() + sender.run_once() == 2
    finally:
        server.stop()
    opened, resolved = box.got
    assert opened["To"] == "ops@example.org"
    assert opened["Subject"].startswith("[tablekeeper] opened: trips failed")
    assert opened["Bcc"] is None
    assert "rule: failed" in opened.get_content()
    assert resolved["Subject"].startswith("[tablekeeper] resolved: ")
    assert resolved["In-Reply-To"] == opened["Message-ID"]


def test_a_mail_server_that_is_away_keeps_the_message_waiting(store: SqlJobStore, store_clock: StoreClock) -> None:
    (mail,) = parse_channels(["email=ops@example.org"], smtp=f"127.0.0.1:{free_port()}")
    store.open_alarm(NewAlarm("k", "failed", "x", names(mail)))
    assert delivery_to(store, mail).run_once() == 0
    store_clock.advance(Timing().back_off_s)
    (waiting,) = store.claim_deliveries(10, hold_s=60)
    assert (waiting.channel, waiting.tries) == ("email", 1)


def test_targets_are_neither_logged_nor_shown(
    jobs: SqlJobStore, receiver: HttpReceiver, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "alarms.toml"
    file.write_text(
        f'[[channel]]\nname = "hook"\nkind = "webhook"\ntarget = "{receiver.url}"\nauthorization = "Bearer {SECRET}"\n'
        f'[[channel]]\nname = "away"\nkind = "slack"\ntarget = "http://127.0.0.1:{free_port()}/{SECRET}"\n'
    )
    channels = load_channels(file)
    receiver.answers = [503]
    jobs.open_alarm(NewAlarm("k", "failed", "x", names(*channels)))
    sender = delivery_to(jobs, *channels)
    sender.run_once()
    assert "the receiver answered 503" in caplog.text
    assert "cannot be reached: ConnectionRefusedError" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(ServerSettings(work_dir=tmp_path, channels=channels))
    jobs.open_alarm(NewAlarm("other", "failed", "x", ["hook"]))
    assert sender.run_once() == 1
    assert receiver.headers[0]["Authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("given", "smtp", "said"),
    [
        ("pager=x", "", "use webhook, slack, email"),
        ("webhook", "", "write it as webhook=URL"),
        (f"slack=ftp://x/{SECRET}", "", "no http or https address"),
        (f"slack=https://x/{SECRET} y", "", "no http or https address"),
        (f"slack=https://x:port/{SECRET}", "", "no http or https address"),
        (f"slack=https://[::1/{SECRET}", "", "no http or https address"),
        (f"webhook=https://{'x' * 70}.example.org/{SECRET}", "", "no http or https address"),
        ("email=a@[b", "localhost:25", "no mail address"),
        ("email=a@b,c@d", "localhost:25", "no mail address"),
        ("email=nobody", "localhost:25", "no mail address"),
        ("email=a@example.org", "", "mail needs a server"),
        ("email=a@example.org", "localhost:mail", "is a number"),
    ],
)
def test_channels_that_cannot_work_are_refused_without_naming_the_target(given: str, smtp: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        parse_channels([given], smtp=smtp)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[channel]", "Expected"),
        ('[[channel]]\nkind = "slack"\nurl = "https://x"', "unknown setting 'url'"),
        ("channels = 1", "unknown setting 'channels'"),
        ("channel = 1", "written as"),
        ('[[channel]]\nname="a"\nkind="slack"\ntarget="http://x"\n' * 2, "same name"),
        ('[[channel]]\nkind="webhook"\ntarget="http://x"\nauthorization="Bearer …"', "one line of ASCII"),
        (f'[smtp]\nhost="x"\nstarttls="yes"\n{MAIL}', "starttls is true or false"),
        (f'[smtp]\nhost="x"\nfrom="a\\nb"\n{MAIL}', "`from` of the mail server is one line"),
    ],
)
def test_a_file_of_channels_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "alarms.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=said):
        load_channels(file)


def test_two_channels_of_a_kind_have_names_of_their_own() -> None:
    channels = parse_channels(["webhook=http://a", "slack=http://b", "webhook=http://c"])
    assert names(*channels) == ["webhook", "slack", "webhook-2"]


def test_the_end_of_an_alarm_is_told_from_its_beginning() -> None:
    alarm = Alarm(1, "k", "late", "x", opened_ms=1_000, resolved_ms=2_000)
    told = [slack_of(Delivery(n, alarm, "c", bool(n), 0, 0), "")["text"] for n in (0, 1)]
    assert [str(text).split(" ")[0] for text in told] == ["*opened*", "*resolved*"]
    ended = mail_of(Delivery(1, alarm, "c", True, 0, 0), "", to="a@b")
    assert "resolved: 1970-01-01 00:00:02 UTC" in ended.get_content()


def test_alarms_lead_to_where_people_find_the_pages(tmp_path: Path, receiver: HttpReceiver) -> None:
    channels = parse_channels([f"webhook={receiver.url}"])
    settings = ServerSettings(work_dir=tmp_path, channels=channels, public_url="https://keeper.example.org/")
    service = open_service(settings, runtime=SYSTEM_RUNTIME, address="http://127.0.0.1:9091")
    service.store.open_alarm(NewAlarm("k", "backlog", "x", names(*channels)))
    assert service.delivery.run_once() == 1
    service.stop()
    assert receiver.got[0]["link"] == "https://keeper.example.org/alarms"
    with pytest.raises(InvalidRequestError, match="https://name:port"):
        ServerSettings(work_dir=tmp_path, public_url="keeper")
