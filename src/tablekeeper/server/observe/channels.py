"""Channels of alarms from the command line and from a TOML file, checked before the service starts.

    [smtp]
    host = "mail.example.org"     # also port, from, starttls, user, password

    [[channel]]
    name = "on-call"              # messages that wait are kept by this name over restarts
    kind = "webhook"              # or slack, email
    target = "https://example.org/hook"
    authorization = "Bearer …"    # a header of webhooks, if they want one

A target can be a secret (Slack's addresses are), so errors name the channel and never the target.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.settings import AlarmChannel

__all__ = ["KINDS", "load_channels", "parse_channels"]

KINDS = ("webhook", "slack", "email")
_SMTP_FIELDS = ("host", "port", "from", "starttls", "user", "password")
_MAIL_ADDRESS = re.compile(r"[^@\s,;:<>()\[\]\"\\]+@[^@\s,;:<>()\[\]\"\\]+")
_CHANNEL_FIELDS = ("name", "kind", "target", "authorization")


def parse_channels(given: Sequence[str], *, smtp: str = "", password: str = "") -> tuple[AlarmChannel, ...]:
    """From `webhook=URL`, `slack=URL` and `email=ADDRESS`; `smtp` is `host:port` of the server that takes mail."""
    host, _, port = smtp.rpartition(":") if ":" in smtp else (smtp, "", "25")
    mail = {"host": host, "port": port, **({"password": password} if password else {})} if smtp else {}
    channels: list[AlarmChannel] = []
    for each in given:
        kind, equals, target = each.partition("=")
        if not equals:
            raise InvalidRequestError("--alarm: write it as webhook=URL, slack=URL or email=ADDRESS")
        number = sum(channel.kind == kind for channel in channels) + 1
        name = kind if number == 1 else f"{kind}-{number}"
        channels.append(_checked(AlarmChannel(name, kind, target, mail if kind == "email" else {})))
    return tuple(channels)


def load_channels(path: Path) -> tuple[AlarmChannel, ...]:
    """From a TOML file."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequestError(f"{path}: {error}") from error
    _refuse_unknown(document, ("smtp", "channel"), where=str(path))
    mail = _texts(document.get("smtp", {}), _SMTP_FIELDS, where=f"{path}: smtp")
    entries = document.get("channel", [])
    if not isinstance(entries, list):
        raise InvalidRequestError(f"{path}: channels are written as [[channel]]")
    channels: list[AlarmChannel] = []
    for number, entry in enumerate(entries, start=1):
        fields = _texts(entry, _CHANNEL_FIELDS, where=f"{path}: channel {number}")
        kind = fields.get("kind", "")
        options = mail if kind == "email" else {k: v for k, v in fields.items() if k == "authorization"}
        channel = AlarmChannel(fields.get("name", f"{kind}-{number}"), kind, fields.get("target", ""), options)
        channels.append(_checked(channel))
    names = [channel.name for channel in channels]
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"{path}: two channels have the same name")
    return tuple(channels)


def _checked(channel: AlarmChannel) -> AlarmChannel:
    if channel.kind not in KINDS:
        raise InvalidRequestError(f"alarm channel of the kind {channel.kind[:40]!r}: use {', '.join(KINDS)}")
    if channel.kind == "email":
        if not _MAIL_ADDRESS.fullmatch(channel.target):
            raise InvalidRequestError(f"alarm channel {channel.name!r}: the target is no mail address")
        if not channel.options.get("host"):
            raise InvalidRequestError(f"alarm channel {channel.name!r}: mail needs a server, as in --smtp localhost:25")
        if not channel.options.get("port", "25").isdigit():
            raise InvalidRequestError(f"alarm channel {channel.name!r}: the port of the mail server is a number")
        if not channel.options.get("from", "").isprintable():
            raise InvalidRequestError(f"alarm channel {channel.name!r}: `from` of the mail server is one line")
        # Anything else would be taken for "no", and a password would cross the network unencrypted.
        if channel.options.get("starttls", "false") not in ("true", "false"):
            raise InvalidRequestError(f"alarm channel {channel.name!r}: starttls is true or false, without quotes")
        return channel
    if not _is_web_address(channel.target):
        raise InvalidRequestError(f"alarm channel {channel.name!r}: the target is no http or https address")
    authorization = channel.options.get("authorization", "")
    if not authorization.isascii() or not authorization.isprintable():
        raise InvalidRequestError(f"alarm channel {channel.name!r}: the authorization is one line of ASCII characters")
    return channel


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Names with longer parts cannot be looked up, and other ports than numbers not be called.
        is_place = bool(parts.hostname) and bool(str(parts.hostname).encode("idna")) and (parts.port or 1) > 0
    except ValueError:
        return False
    is_printable = text.isascii() and text.isprintable() and " " not in text
    return parts.scheme in ("http", "https") and is_place and is_printable


def _texts(given: Any, known: Sequence[str], *, where: str) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{where}: this is a table of settings")
    _refuse_unknown(given, known, where=where)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidRequestError(f"{where}: unknown setting {unknown[0]!r}; there are {', '.join(known)}")
