"""What writers send as text, turned into values: instants, engines, resources, parallelism, extra parameters.

The fields are those of RFC-43 and of the client that Hudi ships, which sends all of them as text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote

from tablekeeper.config.guarded_options import guarded_options
from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.api.refusals import Refusal, RefusedCallError
from tablekeeper.server.engines.parameters import check_settings
from tablekeeper.server.model import RunParameters, ServiceAction, Status

__all__ = [
    "parse_actions",
    "parse_engine",
    "parse_instants",
    "parse_name",
    "parse_run_parameters",
    "parse_status",
    "parse_statuses",
]

_INSTANT = re.compile(r"\d{14}|\d{17}", re.ASCII)
_MEMORY = r"[1-9]\d{0,5}[kKmMgGtT]?[bB]?"
_RESOURCE = re.compile(rf"(?:[A-Za-z]{{1,20}}:)?{_MEMORY}[:,]{_MEMORY}", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,199}", re.ASCII)
_MOST_INSTANTS = 1000
_MOST_PARAMETERS = 100
_MOST_PARALLELISM = 100_000
_MOST_NAME = 255


def parse_name(text: str, *, field: str, default: str = "") -> str:
    """A name of a table, database, owner or queue: no control characters, and no slash, which addresses are made of."""
    name = text.strip() or default
    if not name:
        raise InvalidRequestError(f"{field} is missing")
    if len(name) > _MOST_NAME or any(ord(each) < 32 or 127 <= ord(each) < 160 or each == "/" for each in name):
        raise InvalidRequestError(
            f"{field} is a text of at most {_MOST_NAME} characters without slashes and control characters"
        )
    return name


def name_of_place(uri: str) -> str:
    """The last part of a path, as people wrote it; as it is coded in the URI if some of it cannot be printed."""
    coded = uri.rstrip("/").rpartition("/")[2]
    if not uri.startswith("file:"):
        return coded
    try:
        plain = unquote(coded, errors="strict")
    except UnicodeDecodeError:
        return coded
    return plain if plain.isprintable() and plain == plain.strip() else coded


def parse_instants(text: str) -> tuple[str, ...]:
    """One instant or a comma-separated list; each once, in the order given. Empty text is an empty list."""
    instants = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(instants) > _MOST_INSTANTS:
        raise RefusedCallError(Refusal.INVALID_INSTANT, f"at most {_MOST_INSTANTS} instants in one request")
    wrong = next((each for each in instants if not _INSTANT.fullmatch(each)), None)
    if wrong is not None:
        raise RefusedCallError(
            Refusal.INVALID_INSTANT,
            f"{wrong[:40]!r} is not an instant: an instant is a time of 17 digits (yyyyMMddHHmmssSSS), or 14",
        )
    return tuple(instants)


def parse_engine(text: str, *, known: Collection[str]) -> str:
    """The engine to run on; empty means the one that the service is set up with, which is what `spark` asks for."""
    name = text.strip().lower().replace("_", "-")
    if name in ("", "spark"):
        return ""
    if name not in known:
        raise InvalidRequestError(
            f"execution_engine {text[:40]!r}: this service has {', '.join(sorted({'spark', *known}))}"
        )
    return name


def parse_status(text: str) -> Status:
    """By its word."""
    try:
        return Status[text.strip().upper()]
    except KeyError:
        words = ", ".join(status.word for status in Status)
        raise RefusedCallError(Refusal.INVALID_REQUEST, f"status {text[:40]!r}: use {words}") from None


def parse_statuses(text: str) -> tuple[Status, ...] | None:
    """One or a comma-separated list; None, which means all, for an empty text."""
    return tuple(map(parse_status, text.split(","))) if text else None


def parse_actions(text: str) -> tuple[ServiceAction, ...] | None:
    """The same for services, by any of their names."""
    return tuple(map(ServiceAction.parse, text.split(","))) if text else None


def parse_run_parameters(*, resource: str, parallelism: str, extra_params: str) -> RunParameters:
    """What the engine gets. Its own limits are checked by the engine itself."""
    resource = resource.strip()
    if resource and not _RESOURCE.fullmatch(resource):
        raise InvalidRequestError(f"resource {resource[:40]!r}: write it as 4g:4g or spark:4g,4g (driver, executor)")
    parameters = RunParameters(resource, _parse_parallelism(parallelism), _parse_extra(extra_params))
    check_settings(parameters)
    return parameters


def _parse_parallelism(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _MOST_PARALLELISM:
        raise InvalidRequestError(f"parallelism {text[:40]!r}: a whole number from 1 to {_MOST_PARALLELISM}")
    return int(text)


def _parse_extra(text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in re.split(r"[,;\n]", text))):
        name, separator, value = part.partition("=")
        if not separator or not _PARAMETER.fullmatch(name.strip()):
            raise InvalidRequestError(f"extra_params: {part[:60]!r} is not of the form name=value")
        parameters[name.strip()] = value.strip()
    guarded = guarded_options(parameters)
    if guarded:
        raise InvalidRequestError(
            f"extra_params: {guarded[0]} is not for requests; an admin can put it into the policy"
        )
    if len(parameters) > _MOST_PARAMETERS:
        raise InvalidRequestError(f"extra_params: at most {_MOST_PARAMETERS} of them")
    return parameters
