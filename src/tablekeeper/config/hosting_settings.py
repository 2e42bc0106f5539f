"""Settings of a writer that leaves table services to a Table Management Service.

Under the names of RFC-43 and of the client that Java Hudi ships. Services are left to it as soon as its address is
given, or `hoodie.table.service.manager.enabled` is true. One default differs: Java waits five minutes for an answer;
here ten seconds are all that a write waits, retries and pauses included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from tablekeeper.config.registry import Setting, Settings, setting
from tablekeeper.errors import InvalidRequestError

__all__ = ["HostingSettings", "hosted_writer_options"]

_PREFIX = "hoodie.table.service.manager."
_DEPLOY = _PREFIX + "deploy."
_ACTIONS = _PREFIX + "actions"
_SWITCH = "hoodie.table.service.{}.enable"

_ENABLED = Setting(
    _PREFIX + "enabled",
    None,
    "Leave table services to a Table Management Service; true as soon as its address is given.",
    takes=bool,
)
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
_SWITCHED = {"compaction": "compactions", "clustering": "clusterings", "clean": "cleans"}
# By the fields of a request that they fill.
_FIELDS = {
    "username": Setting(
        _DEPLOY + "username", None, "The owner of the work, for the limits of the Table Management Service."
    ),
    "queue": Setting(_DEPLOY + "queue", None, "The queue of the Table Management Service for the work."),
    "resource": Setting(_DEPLOY + "resources", None, "Memory of driver and executors, as spark:4g,4g or 4g:4g."),
    "parallelism": Setting(
        _DEPLOY + "parallelism",
        None,
        "Parallelism that the engine of the Table Management Service is given.",
        takes=int,
    ),
    "extra_params": Setting(_DEPLOY + "extra.params", None, "More for that engine: name=value, with commas."),
    "execution_engine": Setting(
        _PREFIX + "execution.engine",
        None,
        "The engine of the Table Management Service that does the work; by default the service's own default.",
    ),
}


@dataclass(frozen=True, slots=True)
class HostingSettings(Settings):
    """`services` are left to the service at one of `addresses`; none if it is not to be asked at all.

    `fields` go into each request as they are.
    """

    services: frozenset[str] = frozenset()
    addresses: tuple[str, ...] = setting(
        _PREFIX + "uris",
        ("http://localhost:9091",),
        "Addresses of the Table Management Service, with commas.",
    )
    timeout_s: float = setting(
        _PREFIX + "connection.timeout.sec",
        10.0,
        "Seconds that a write waits for the Table Management Service, in all.",
    )
    retries: int = setting(
        _PREFIX + "connection.retries",
        3,
        "How often a service that did not answer is asked again inside of that time.",
        least=0,
    )
    retry_delay_s: float = setting(
        _PREFIX + "connection.retry.delay.sec", 1.0, "Seconds between two of these.", least=0
    )
    fields: Mapping[str, str] = field(default_factory=dict)

    besides: ClassVar[tuple[Setting, ...]] = (
        _ENABLED,
        Setting(
            _ACTIONS,
            None,
            "The services left to it: compaction, logcompaction, clustering, clean, separated by commas. Without "
            "it, and without the switches `hoodie.table.service.….enable`, all but log compaction.",
        ),
        *(
            Setting(_SWITCH.format(name), None, f"Leave {plural} to the Table Management Service, or not.", takes=bool)
            for name, plural in _SWITCHED.items()
        ),
        *_FIELDS.values(),
    )

    def _check(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            key = HostingSettings.key("timeout_s")
            raise InvalidRequestError(f"{key}: {self.timeout_s} is no time to wait. Give a number above 0.")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        is_enabled = _ENABLED.read(options)
        if is_enabled is None:
            is_enabled = cls.setting_of("addresses").given(options) is not None
        given = {name: text for name, each in _FIELDS.items() if (text := each.given(options)) is not None}
        return cls(**cls.read(options), services=_services(options) if is_enabled else frozenset(), fields=given)


def hosted_writer_options(address: str) -> dict[str, str]:
    """Options of a writer, of Java or here, that leaves services to the service at `address`."""
    return {
        _ENABLED.name: "true",
        HostingSettings.key("addresses"): address,
        # All three: the client of 1.2.0 looks at compaction alone before it asks for any of them.
        _ACTIONS: "compaction,clustering,clean",
        HostingSettings.key("timeout_s"): "10",
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
