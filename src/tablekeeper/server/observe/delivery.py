"""Messages about alarms on their way: webhooks, Slack-style webhooks and e-mail.

The messages wait in the database, so that no restart loses one. A message is claimed, sent and then marked: an instance
that dies between the last two makes another one send it again after a while. Every message carries its number, by which
a receiver can tell. What does not get through is tried again with a growing pause, as often as `MOST_TRIES` says.

Targets can be secrets: neither logs nor the database's notes name them.
"""

from __future__ import annotations

import http.client
import json
import logging
import smtplib
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from tablekeeper.errors import TablekeeperError
from tablekeeper.server.decisions.outcomes import back_off_s
from tablekeeper.server.model import Delivery
from tablekeeper.server.settings import AlarmChannel, Timing
from tablekeeper.server.store.protocol import JobStore

__all__ = ["MOST_TRIES", "AlarmDelivery", "mail_of", "slack_of", "webhook_of"]

MOST_TRIES = 100
"""With the longest pause about two days."""
_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 10.0
_BATCH = 10
# Longer than a batch can take.
_HOLD_S = 300.0
_MOST_SUBJECT = 120


class UndeliveredError(TablekeeperError):
    """The message did not get through; the text says why without naming the target."""


class AlarmDelivery:
    """Sends what waits. Any number of instances may do so at once."""

    def __init__(
        self,
        store: JobStore,
        channels: tuple[AlarmChannel, ...],
        *,
        timing: Timing,
        address: str,
        jitter: Callable[[], float],
    ) -> None:
        self._store = store
        self._channels = {channel.name: channel for channel in channels}
        self._timing = timing
        self._address = address
        self._jitter = jitter
        context = ssl.create_default_context()
        # A redirect would carry the authorization elsewhere.
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=context))
        self._send: Mapping[str, Callable[[AlarmChannel, Delivery], None]] = {
            "webhook": lambda channel, delivery: self._post(channel, webhook_of(delivery, self._address)),
            "slack": lambda channel, delivery: self._post(channel, slack_of(delivery, self._address)),
            "email": self._mail,
        }

    def run_once(self) -> int:
        """How many got through."""
        delivered = 0
        for delivery in self._store.claim_deliveries(_BATCH, hold_s=_HOLD_S):
            delivered += self._deliver(delivery)
        return delivered

    def _deliver(self, delivery: Delivery) -> bool:
        what = f"alarm {delivery.alarm.alarm_id} to {delivery.channel}"
        try:
            channel = self._channels.get(delivery.channel)
            if channel is None:
                raise UndeliveredError("this instance has no such channel")
            self._send_by(channel, delivery)
        except UndeliveredError as error:
            tries = delivery.tries + 1
            if tries >= MOST_TRIES:
                _LOG.error("%s: given up after %d tries: %s", what, tries, error)
                self._store.finish_delivery(delivery, retry_in_s=None, note=f"given up: {error}")
                return False
            pause_s = back_off_s(tries, self._timing, jitter=self._jitter())
            _LOG.warning("%s: %s; again in %.0f s", what, error, pause_s)
            self._store.finish_delivery(delivery, retry_in_s=pause_s, note=str(error))
            return False
        _LOG.info("%s: delivered", what)
        self._store.finish_delivery(delivery, retry_in_s=None)
        return True

    def _send_by(self, channel: AlarmChannel, delivery: Delivery) -> None:
        try:
            self._send[channel.kind](channel, delivery)
        except UndeliveredError:
            raise
        except Exception as error:  # noqa: BLE001 (one message that cannot be sent must not hold up the others)
            # Only its name: what it says can quote the target or the authorization.
            raise UndeliveredError(f"the message cannot be sent: {type(error).__name__}") from None

    def _post(self, channel: AlarmChannel, body: Mapping[str, object]) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "tablekeeper"}
        if "authorization" in channel.options:
            headers["Authorization"] = channel.options["authorization"]
        # The scheme was checked when the channel was read.
        request = Request(channel.target, json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S):
                return
        except HTTPError as error:
            error.close()
            raise UndeliveredError(f"the receiver answered {error.code}") from None
        except URLError as error:
            raise UndeliveredError(f"the receiver cannot be reached: {type(error.reason).__name__}") from None
        except (OSError, http.client.HTTPException) as error:
            raise UndeliveredError(f"the receiver cannot be reached: {type(error).__name__}") from None

    def _mail(self, channel: AlarmChannel, delivery: Delivery) -> None:
        options = channel.options
        message = mail_of(delivery, self._address, to=channel.target, sender=options.get("from", ""))
        try:
            with smtplib.SMTP(options["host"], int(options.get("port", "25")), timeout=_TIMEOUT_S) as server:
                if options.get("starttls") == "true":
                    server.starttls(context=ssl.create_default_context())
                if options.get("user"):
                    server.login(options["user"], options.get("password", ""))
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            raise UndeliveredError(f"the mail server did not take it: {type(error).__name__}") from None


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def webhook_of(delivery: Delivery, address: str) -> dict[str, object]:
    """What a webhook gets. `message_id` is the same if it comes twice."""
    alarm = delivery.alarm
    return {
        "message_id": delivery.delivery_id,
        "state": _state(delivery),
        "alarm_id": alarm.alarm_id,
        "key": alarm.key,
        "rule": alarm.rule,
        "text": alarm.text,
        "opened_ms": alarm.opened_ms,
        "resolved_ms": alarm.resolved_ms if delivery.is_resolved else None,
        "table_id": alarm.table_id,
        "operation_id": alarm.operation_id,
        "service": address,
        "link": _link(delivery, address),
    }


def slack_of(delivery: Delivery, address: str) -> dict[str, object]:
    """What Slack and its likes get: one line of text, with the three characters escaped that mean something there."""
    alarm = delivery.alarm
    text = alarm.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"*{_state(delivery)}* [{alarm.rule}] {text} ({_link(delivery, address)})"}


def mail_of(delivery: Delivery, address: str, *, to: str, sender: str = "") -> EmailMessage:
    """What people get. The second message answers the first, so that mail programs show them together."""
    alarm = delivery.alarm
    message = EmailMessage()
    # Headers are one line, whatever a table is called.
    line = "".join(each if each.isprintable() else " " for each in alarm.text)
    shown = line if len(line) <= _MOST_SUBJECT else f"{line[: _MOST_SUBJECT - 1].rstrip()}…"
    message["Subject"] = f"[tablekeeper] {_state(delivery)}: {shown}"
    message["From"] = sender or "tablekeeper@localhost"
    message["To"] = to
    moment_ms = alarm.resolved_ms if delivery.is_resolved and alarm.resolved_ms is not None else alarm.opened_ms
    message["Date"] = format_datetime(datetime.fromtimestamp(moment_ms / 1000, UTC))
    opened_id = f"<alarm-{alarm.alarm_id}-opened-{alarm.opened_ms}@tablekeeper>"
    if delivery.is_resolved:
        message["Message-ID"] = f"<alarm-{alarm.alarm_id}-resolved-{alarm.opened_ms}@tablekeeper>"
        message["In-Reply-To"] = opened_id
    else:
        message["Message-ID"] = opened_id
    lines = [alarm.text, "", f"rule: {alarm.rule}", f"since: {_moment(alarm.opened_ms)}"]
    if delivery.is_resolved and alarm.resolved_ms is not None:
        lines.append(f"resolved: {_moment(alarm.resolved_ms)}")
    message.set_content("\n".join([*lines, _link(delivery, address), ""]))
    return message


def _link(delivery: Delivery, address: str) -> str:
    """The page that says most about it."""
    operation_id = delivery.alarm.operation_id
    return f"{address}/alarms" if operation_id is None else f"{address}/operations/{operation_id}"


def _state(delivery: Delivery) -> str:
    return "resolved" if delivery.is_resolved else "opened"


def _moment(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
