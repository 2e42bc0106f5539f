"""Settings of a writer that leaves table services to a Table Management Service.

Under the names of RFC-43 and of the client that Java Hudi ships. Services are left to it as soon as its address is
given, or `hoodie.table.service.manager.enabled` is true. One default differs: Java waits five minutes for an answer;
here ten seconds are all that a write waits, retries and pauses included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.errors import InvalidRequestError

__all__ = ["HOSTING_OPTIONS", "HostingSettings", "java_writer_options"]

_PREFIX = "hoodie.table.service.manager."
_ENABLED = _PREFIX + "enabled"
_ADDRESSES = _PREFIX + "uris"
_ACTIONS = _PREFIX + "actions"
_TIMEOUT = _PREFIX + "connection.timeout.sec"
_RETRIES = _PREFIX + "connection.retries"
_DELAY = _PREFIX + "connection.retry.delay.sec"
_DEPLOY = _PREFIX + "deploy."
_ENGINE = _PREFIX + "execution.engine"
_SWITCH = "hoodie.table.service.{}.enable"

_WORDS = {
    "compaction": "compaction",
    "compact": "compaction",
    "logcompaction": "log_compaction",
    "logcompact": "log_compaction",
    "clustering": "clustering",
    "cluster": "clustering",
    "replacecommit": "clustering",
    "clean": "clean",
}
_SWITCHED = ("compaction", "clustering", "clean")
# As the fields of a request are called, and the settings that fill them.
_FIELDS = {
    "username": _DEPLOY + "username",
    "queue": _DEPLOY + "queue",
    "resource": _DEPLOY + "resources",
    "parallelism": _DEPLOY + "parallelism",
    "extra_params": _DEPLOY + "extra.params",
    "execution_engine": _ENGINE,
}

HOSTING_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (_ENABLED, None, bool, "Leave table services to a Table Management Service; true as soon as its address is given."),
    (_ADDRESSES, "http://localhost:9091", str, "Addresses of the Table Management Service, with commas."),
    (
        _ACTIONS,
        None,
        str,
        "What is left to it: compaction, logcompaction, clustering, clean, with commas. Without it, and without the "
        "switches `hoodie.table.service.….enable`, all but log compaction.",
    ),
    (_SWITCH.format("compaction"), None, bool, "Leave compactions to the Table Management Service, or not."),
    (_SWITCH.format("clustering"), None, bool, "Leave clusterings to the Table Management Service, or not."),
    (_SWITCH.format("clean"), None, bool, "Leave cleans to the Table Management Service, or not."),
    (_TIMEOUT, "10", float, "Seconds that a write waits for the Table Management Service, in all."),
    (_RETRIES, "3", int, "How often a service that did not answer is asked again inside of that time."),
    (_DELAY, "1", float, "Seconds between two of these."),
    (_DEPLOY + "username", None, str, "The owner of the work, for the limits of the Table Management Service."),
    (_DEPLOY + "queue", None, str, "The queue that the work goes into at the Table Management Service."),
    (_DEPLOY + "resources", None, str, "Memory of driver and executors, as spark:4g,4g or 4g:4g."),
    (_DEPLOY + "parallelism", None, int, "Parallelism that the engine of the Table Management Service is given."),
    (_DEPLOY + "extra.params", None, str, "More for that engine: name=value, with commas."),
    (_ENGINE, None, str, "The engine of the Table Management Service that does the work; its default one if left out."),
)
"""Known options as (name, default, type, meaning)."""

_DEFAULTS = {name: default for name, default, _, _ in HOSTING_OPTIONS}


@dataclass(frozen=True, slots=True)
class HostingSettings:
    """`services` are left to the service at one of `addresses`; none if it is not to be asked at all.

    `fields` go into each request as they are.
    """

    services: frozenset[str] = frozenset()
    addresses: tuple[str, ...] = ()
    timeout_s: float = 10.0
    retries: int = 3
    retry_delay_s: float = 1.0
    fields: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise InvalidRequestError(f"{_TIMEOUT}: {self.timeout_s} is no time to wait. Give a number above 0.")
        if self.retries < 0 or self.retry_delay_s < 0:
            raise InvalidRequestError(f"{_RETRIES} and {_DELAY} are 0 or more.")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> HostingSettings:
        """From options by name, already checked; the defaults where they say nothing."""

        def text(name: str) -> str:
            return options.get(name) or _DEFAULTS[name] or ""

        is_enabled = text(_ENABLED).lower() == "true" if _ENABLED in options else _ADDRESSES in options
        return cls(
            services=_services(options) if is_enabled else frozenset(),
            addresses=tuple(each.strip() for each in text(_ADDRESSES).split(",") if each.strip()),
            timeout_s=float(text(_TIMEOUT)),
            retries=int(text(_RETRIES)),
            retry_delay_s=float(text(_DELAY)),
            fields={name: options[option] for name, option in _FIELDS.items() if options.get(option)},
        )


def java_writer_options(address: str) -> dict[str, str]:
    """What a writer of Java Hudi is given, so that its client leaves services to the service at `address`."""
    return {
        _ENABLED: "true",
        _ADDRESSES: address,
        # All three: the client of 1.2.0 looks at compaction alone before it asks for any of them.
        _ACTIONS: "compaction,clustering,clean",
        _TIMEOUT: "10",
    }


def _services(options: Mapping[str, str]) -> frozenset[str]:
    switches = {name: options[_SWITCH.format(name)] for name in _SWITCHED if _SWITCH.format(name) in options}
    switched_on = {name for name, value in switches.items() if value.lower() == "true"}
    named = {_service(word) for word in options.get(_ACTIONS, "").split(",") if word.strip()}
    chosen = named | switched_on or set(_SWITCHED)
    return frozenset(chosen - (set(switches) - switched_on))


def _service(word: str) -> str:
    found = _WORDS.get(word.strip().lower().replace("_", "").replace("-", ""))
    if found is None:
        raise InvalidRequestError(
            f"{_ACTIONS}: {word.strip()!r} is none of compaction, logcompaction, clustering, clean."
        )
    return found
