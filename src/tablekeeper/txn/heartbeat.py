"""Heartbeats: how a running write shows that it is alive, so that nobody rolls it back.

The files are Java's: `.hoodie/.heartbeat/<instant>`, rewritten periodically; what counts is the modification time. A
missing file means that nobody is working on the instant.

Two clocks are compared: the file's time is the store's (on an object store) or the writer's (on a local file system),
the other one is ours. Therefore:

- Others are declared dead late: after the tolerance of the settings plus an allowance for clock skew. Rolling back a
  live write costs more than waiting.
- A heartbeat from the future counts as active within the same limits. Beyond them its time is meaningless, and waiting
  for it would block its instant until that time: it counts as expired. If its writer is alive, it is fenced, and the
  doctor reports the clocks.
- We declare ourselves dead early: after nine tenths of the tolerance without a successful renewal, by the monotonic or
  the wall clock, whichever shows more, counted from before the renewal began. After that, or once somebody removed the
  file or put another owner into it, the heartbeat has ended for good: others may be rolling the write back, so nothing
  more may be published.
- A renewal replaces only the version of the file that it read: a process that slept in the middle of a renewal revives
  nothing. A new heartbeat replaces an expired one only if nobody has done so since the lock was held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tablekeeper.config.concurrency_settings import HeartbeatSettings
from tablekeeper.errors import FencedError, NotFoundError, StorageError
from tablekeeper.model import RequestedTime, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage.protocol import Storage

__all__ = [
    "Heartbeat",
    "HeartbeatSettings",
    "HeartbeatView",
    "delete_heartbeat",
    "load_heartbeat_owner",
    "load_heartbeats",
    "start_heartbeat",
]

_DIRECTORY = ".hoodie/.heartbeat"
_LOG = logging.getLogger(__name__)
_USABLE = 0.9


def start_heartbeat(
    storage: Storage,
    instant: RequestedTime,
    *,
    settings: HeartbeatSettings,
    runtime: Runtime,
    owner: str = "",
    look: Callable[[], None] = lambda: None,
) -> Heartbeat:
    """Write the heartbeat of `instant` and keep renewing it. `owner` is kept in the file, whose contents Java ignores.

    If others may have a heartbeat for the same instant, `owner` must be unique. The caller checks for other heartbeats,
    under the table lock; `look` raises if that was lost. `FencedError` if another process was faster.
    """
    return Heartbeat(storage, instant, settings=settings, runtime=runtime, owner=owner, look=look)


def load_heartbeat_owner(storage: Storage, instant: RequestedTime) -> str | None:
    """The owner of the heartbeat of this instant; None if there is none, empty if its writer left no name."""
    try:
        return storage.read(_path(instant)).decode(errors="replace")
    except NotFoundError:
        return None


def load_heartbeats(storage: Storage, *, settings: HeartbeatSettings, runtime: Runtime) -> HeartbeatView:
    """All heartbeats of the table as of now."""
    now_ms = runtime.clock.now_ms()
    ages = {
        RequestedTime(info.name): (now_ms - info.modified_ms) / 1000
        for info in storage.list_files(_DIRECTORY)
        if info.name.isascii() and info.name.isdigit()
    }
    return HeartbeatView(ages=ages, lapses_after_s=(settings.tolerance_ms + settings.skew_allowance_ms) / 1000)


def delete_heartbeat(storage: Storage, instant: RequestedTime) -> None:
    """Remove the heartbeat of a dead writer, once its instant was rolled back or found completed."""
    storage.delete(_path(instant))


@dataclass(frozen=True, slots=True)
class HeartbeatView:
    """Heartbeats at one moment: `ages` in seconds by instant, negative for one from the future."""

    ages: Mapping[RequestedTime, float] = field(default_factory=dict)
    lapses_after_s: float = 0.0

    def is_active(self, instant: RequestedTime) -> bool:
        """True if a writer is, or may be, working on `instant`."""
        age_s = self.ages.get(instant)
        return age_s is not None and abs(age_s) <= self.lapses_after_s


class Heartbeat:
    """The heartbeat of one of our writes; the end of the `with` block stops it."""

    def __init__(
        self,
        storage: Storage,
        instant: RequestedTime,
        *,
        settings: HeartbeatSettings,
        runtime: Runtime,
        owner: str = "",
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.instant = instant
        self._content = owner.encode()
        self._storage = storage
        self._path = _path(instant)
        self._usable_s = settings.tolerance_ms / 1000 * _USABLE
        self._clock = runtime.clock
        self._mutex = runtime.threads.lock()
        self._over: str | None = None
        self._is_stopped = False
        self._version: str | None = None
        self._beat_s, self._beat_ms = self._clock.monotonic_s(), self._clock.now_ms()
        self._create(look)
        # With few tolerable misses the configured interval would leave no room for one renewal that is late.
        interval_s = min(settings.interval_ms, settings.tolerance_ms / 3) / 1000
        self._renewal = runtime.threads.every(interval_s, self.renew, name=f"tablekeeper-heartbeat-{instant}")

    def check(self) -> None:
        """Raise `FencedError` if others may consider this write dead by now. Does no I/O."""
        with self._mutex:
            reason = self._ended()
        if reason is not None:
            raise FencedError(
                f"instant {self.instant}: {reason}, and it may have been rolled back. "
                f"Nothing was published; reload the table and write again."
            )

    def renew(self) -> None:
        """Renew once. Errors of the store are tolerated as long as possible: the next renewal may succeed."""
        with self._mutex:
            if self._ended() is not None:
                return
        # Without the mutex until the answer: `check` must not wait for a store that hangs.
        started_s, started_ms = self._clock.monotonic_s(), self._clock.now_ms()
        try:
            is_ours = self._replace()
        except FencedError:
            is_ours = False
        except StorageError as error:
            _LOG.warning("instant %s: the heartbeat failed and will be tried again: %s", self.instant, error)
            return
        with self._mutex:
            if self._ended() is not None:
                return
            if is_ours:
                self._beat_s, self._beat_ms = started_s, started_ms
            else:
                self._over = "its heartbeat was taken over or removed by another writer"

    def stop(self, *, is_completed: bool = False) -> None:
        """Stop the renewal and remove the file. Can be repeated. An expired file may be another's and is left.

        With `is_completed` nobody else can have a heartbeat for the instant any more, and an expired one is removed
        too.
        """
        self._renewal.stop()
        with self._mutex:
            has_ended = self._ended() is not None
            self._is_stopped = True
        if not has_ended or is_completed:
            try:
                # The name in the file shows whether another executor has taken the plan over. Nobody takes over
                # what is completed.
                is_ours = is_completed or not self._content
                if is_ours or load_heartbeat_owner(self._storage, self.instant) == self._content.decode():
                    self._storage.delete(self._path)
            except FencedError:
                _LOG.debug("instant %s: the heartbeat belongs to the process that ended this attempt", self.instant)
            except StorageError as error:
                _LOG.warning("instant %s: the heartbeat was left behind and will lapse: %s", self.instant, error)

    def abandon(self) -> None:
        """Stop the renewal and let the file expire: the commit may still succeed, so nobody may touch the write yet."""
        self._renewal.stop()
        with self._mutex:
            self._is_stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _create(self, look: Callable[[], None]) -> None:
        """Write the file, over an expired one if need be, but not over that of a process that has begun since."""
        if self._storage.put_if_absent(self._path, self._content):
            return
        current = self._storage.read_versioned(self._path)
        # The lock was still held when this was read: who begins later changes the version.
        look()
        if current is None:
            is_ours = self._storage.put_if_absent(self._path, self._content)
        else:
            self._version = self._storage.replace(self._path, self._content, version=current.version)
            is_ours = self._version is not None
        if not is_ours:
            raise FencedError(
                f"instant {self.instant}: another process has begun to work on it meanwhile. Nothing was changed; "
                "reload the table."
            )

    def _replace(self) -> bool:
        """Renew the file if it is still ours. A blind write could revive a dead heartbeat, or end another's.

        After a refusal the file is read again: an earlier renewal may have succeeded although its answer was lost.
        """
        if self._version is not None:
            self._version = self._storage.replace(self._path, self._content, version=self._version)
        if self._version is None:
            current = self._storage.read_versioned(self._path)
            if current is None or current.data != self._content:
                return False
            self._version = self._storage.replace(self._path, self._content, version=current.version)
        return self._version is not None

    def _ended(self) -> str | None:
        if self._is_stopped:
            return "its heartbeat was stopped"
        if self._over is None:
            silent_s = max(self._clock.monotonic_s() - self._beat_s, (self._clock.now_ms() - self._beat_ms) / 1000)
            if silent_s >= self._usable_s:
                self._over = f"its heartbeat could not be renewed for {silent_s:.0f} s"
        return self._over


def _path(instant: RequestedTime) -> str:
    return join_path(_DIRECTORY, instant.value)
