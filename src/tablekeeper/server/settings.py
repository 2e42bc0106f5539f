"""Settings of the service: one frozen value, checked once, handed to everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tablekeeper.errors import InvalidRequestError

__all__ = ["AlarmChannel", "Limits", "ServerSettings", "Timing"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the service. Those per queue or owner hold for all instances together; 0 means no limit."""

    slots: int = 2
    default_queue_limit: int = 0
    default_owner_limit: int = 0
    queue_limits: Mapping[str, int] = field(default_factory=dict)
    owner_limits: Mapping[str, int] = field(default_factory=dict)
    scheduler_window: int = 500
    looks_per_pass: int = 50
    log_bytes: int = 1_000_000
    failed_looks: int = 5
    body_bytes: int = 1_000_000
    head_s: float = 15.0
    body_s: float = 60.0
    requests_per_s: float = 1000.0
    request_burst: int = 2000

    def queue_limit(self, queue: str) -> int:
        return self.queue_limits.get(queue, self.default_queue_limit)

    def owner_limit(self, owner: str) -> int:
        return self.owner_limits.get(owner, self.default_owner_limit)


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals and durations, all in seconds."""

    lease_s: float = 60.0
    renew_every_s: float = 10.0
    instance_gone_s: float = 60.0
    schedule_every_s: float = 0.5
    watch_every_s: float = 0.5
    look_every_s: float = 1.0
    look_hold_s: float = 120.0
    look_timeout_s: float = 5.0
    look_min_s: float = 30.0
    look_max_s: float = 3600.0
    expire_every_s: float = 5.0
    alarms_every_s: float = 5.0
    sample_every_s: float = 10.0
    prune_every_s: float = 300.0
    keep_finished_s: float = 14 * 24 * 3600.0
    back_off_s: float = 5.0
    back_off_max_s: float = 1800.0
    held_retry_s: float = 30.0
    stuck_after_s: float = 4 * 3600.0
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True)
class AlarmChannel:
    """Where alarms go: `kind` is webhook, slack or email, `target` a URL or address. Secrets are never shown."""

    name: str
    kind: str
    target: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All settings. `allow` are the places in which tables may be; without any, nothing can be registered by path.

    `work_dir` keeps the logs and results of attempts, and the SQLite file unless `database_url` names another one.
    `public_url` is where people find the pages, if not at the address of the instance: alarms link there.
    """

    work_dir: Path
    database_url: str = ""
    host: str = "127.0.0.1"
    port: int = 9091
    grpc_port: int | None = None
    engine: str = "arrow"
    master: str = ""
    engine_options: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    timing: Timing = Timing()
    channels: tuple[AlarmChannel, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    public_url: str = ""

    def __post_init__(self) -> None:
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise InvalidRequestError(f"--public-url {self.public_url}: write it as https://name:port")
        for name, port in (("port", self.port), ("grpc_port", self.grpc_port)):
            if port is not None and not 0 <= port <= 65535:
                raise InvalidRequestError(f"{name} {port}: a port is a number from 0 (any free one) to 65535")
        if self.limits.slots < 0:
            raise InvalidRequestError(f"slots {self.limits.slots}: at least 0, which means that others do the work")
        if not self.timing.renew_every_s < self.timing.lease_s / 2:
            raise InvalidRequestError(
                "renew_every_s has to be less than half of lease_s, or leases lapse by themselves"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidRequestError("TLS needs both a certificate and a key")

    @property
    def url(self) -> str:
        """The database that is used, as SQLAlchemy spells it."""
        if not self.database_url:
            return f"sqlite:///{self.work_dir / 'service.db'}"
        scheme, _, rest = self.database_url.partition("://")
        driver = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}.get(scheme, scheme)
        if scheme in ("mysql", "mariadb"):
            driver = "mysql+pymysql"
        return f"{driver}://{rest}"
