"""What a writer tells the Table Management Service after a commit: here is work. In the words of Java's shipped client.

One request a service, each with all plans of that kind that wait on the timeline, so that the next request makes up for
one that was lost. Nothing in here fails or delays a write: whatever goes wrong is a reason in the answer, and the time
for all requests together ends by the clock, also where a server sends a byte a second or a name is looked up for ever.
A service that let a write wait is not asked by those of the same process that follow at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tablekeeper.client.http import ServiceClient, ServiceUnreachableError, path_of
from tablekeeper.config.hosting_settings import HostingSettings
from tablekeeper.errors import TablekeeperError
from tablekeeper.model.results import Result
from tablekeeper.runtime import Clock, Runtime

__all__ = ["Handover", "HandoverTable", "hand_over"]

_LOG = logging.getLogger(__name__)
_PATHS = {"compaction": "compact", "log_compaction": "logcompact", "clustering": "cluster", "clean": "clean"}

_SPARED_S = 30.0
_MOST_SILENT = 100
_silent: dict[tuple[int, tuple[str, ...]], tuple[Clock, float]] = {}
"""By clock and addresses: the clock, and when services at these addresses let a write wait in vain."""


@dataclass(frozen=True, slots=True)
class HandoverTable:
    """The table as requests name it."""

    base_path: str
    name: str
    database: str = ""


@dataclass(frozen=True, slots=True)
class Handover(Result):
    """Services that the Table Management Service took over, the plans that it was told of, and why it took no more."""

    addresses: tuple[str, ...]
    services: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    refusal: str = ""

    def __repr__(self) -> str:
        taken = f"{', '.join(self.services)} handed over to {', '.join(self.addresses)}" if self.services else "nothing"
        return f"{taken}; {self.refusal}" if self.refusal else taken


def hand_over(
    settings: HostingSettings,
    table: HandoverTable,
    plans: Mapping[str, Sequence[str]],
    *,
    token: str,
    runtime: Runtime,
) -> Handover:
    """Ask for the services in `plans`, with the instants that wait for each. Does not raise, and ends in time."""
    taken: list[str] = []
    begun_s = runtime.clock.monotonic_s()
    silent_s = _silent_since_s(settings, runtime.clock)
    if silent_s < _SPARED_S:
        ago = f"the service did not answer in time {silent_s:.0f} s ago"
        return Handover(settings.addresses, refusal=f"{ago}, and is asked again {_SPARED_S:g} s after that")

    def ask_all() -> str:
        until_s = begun_s + settings.timeout_s
        for service, instants in plans.items():
            refusal = _ask(settings, _request(settings, table, service, instants), token, until_s, runtime)
            if refusal:
                return refusal
            taken.append(service)
        return ""

    try:
        refusal = runtime.threads.call_within(settings.timeout_s, ask_all, name="tablekeeper-handover")
    except TimeoutError:
        refusal = f"the service did not answer within {settings.timeout_s:g} s"
    except Exception as error:  # noqa: BLE001 (whatever a server makes a library raise, the write has landed)
        _LOG.exception("handing services over failed unexpectedly")
        refusal = f"{type(error).__name__}: {error}"
    if refusal and runtime.clock.monotonic_s() - begun_s > settings.timeout_s / 2:
        _note_silence(settings, runtime.clock)
    services = tuple(taken)
    told = tuple(instant for service in services for instant in plans[service])
    return Handover(settings.addresses, services, told, refusal)


def _silent_since_s(settings: HostingSettings, clock: Clock) -> float:
    _, since_s = _silent.get((id(clock), settings.addresses), (clock, -math.inf))
    return clock.monotonic_s() - since_s


def _note_silence(settings: HostingSettings, clock: Clock) -> None:
    if len(_silent) >= _MOST_SILENT:
        _silent.clear()
    _silent[id(clock), settings.addresses] = (clock, clock.monotonic_s())


def _request(settings: HostingSettings, table: HandoverTable, service: str, instants: Sequence[str]) -> tuple[str, Any]:
    query = {
        "action": "REQUEST",
        "basepath": table.base_path,
        "db_name": table.database,
        "table_name": table.name,
        "instant": ",".join(instants),
        **settings.fields,
    }
    return path_of("v1", "hoodie", "service", _PATHS[service]), query


def _ask(settings: HostingSettings, request: tuple[str, Any], token: str, until_s: float, runtime: Runtime) -> str:
    """Why the service did not take it, after all tries; empty if it did."""
    path, query = request
    tries_left = settings.retries
    while True:
        now_s = runtime.clock.monotonic_s()
        client = ServiceClient(settings.addresses, token=token, timeout_s=max(0.001, until_s - now_s))
        try:
            answer = client.get(path, query)
        except ServiceUnreachableError as error:
            if not tries_left or runtime.clock.monotonic_s() + settings.retry_delay_s >= until_s:
                return str(error)
            tries_left -= 1
            runtime.clock.sleep(settings.retry_delay_s)
        except TablekeeperError as error:
            return str(error)
        else:
            is_ours = isinstance(answer, dict) and isinstance(answer.get("plans"), list)
            return "" if is_ours else "what answered is no Table Management Service"
