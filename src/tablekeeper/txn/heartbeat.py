"""Heartbeats: how a running write shows that it lives, so that nobody rolls it back.

Java's files: `.hoodie/.heartbeat/<instant>`, rewritten again and again; what counts is the
modification time. A missing file means that nobody works on the instant.

Two clocks meet here. The file's time is the store's (on an object store) or the writer's (on a local
file system), the time it is compared with is ours. The choices made:

- Others are declared dead late: the tolerance of the settings plus an allowance for skew. Rolling back
  a live write costs more than waiting.
- A heartbeat from the future counts as active for as much ahead as it would behind. Beyond that its
  time says nothing, and waiting for it would hold its instant until that time has come: it counts as
  ended. A live writer that is taken for dead by it is fenced, and the doctor names the clocks.
- We declare ourselves dead early: after nine tenths of the tolerance without a successful renewal,
  by the monotonic or by the wall clock, whichever says more, counted from before the renewal began.
  Once that has happened, or somebody removed the file or put another owner into it, the heartbeat is
  over for good: others may be rolling the write back, so that nothing more may be published.
- A renewal replaces the very file that it looked at, or nothing: a process that slept in the middle of
  one brings nothing back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
    storage: Storage, instant: RequestedTime, *, settings: HeartbeatSettings, runtime: Runtime, owner: str = ""
) -> Heartbeat:
    """Write the heartbeat of `instant` and keep renewing it. `owner` is kept in the file, whose contents Java ignores.

    Beside others that may beat for the same instant it must be a text that nobody else has.

    Whether somebody else has one for the same instant is the caller's question, to be asked under the table lock.
    """
    return Heartbeat(storage, instant, settings=settings, runtime=runtime, owner=owner)


def load_heartbeat_owner(storage: Storage, instant: RequestedTime) -> str | None:
    """Who last beat for this instant; None if nobody did, empty if its writer left no name."""
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
    """Remove what a dead writer left: after its instant was rolled back, or found completed."""
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
    """The heartbeat of one of our writes. Leaving the `with` block stops it."""

    def __init__(
        self,
        storage: Storage,
        instant: RequestedTime,
        *,
        settings: HeartbeatSettings,
        runtime: Runtime,
        owner: str = "",
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
        storage.put(self._path, self._content)
        # With few tolerable misses the configured interval would leave no room for one renewal that is late.
        interval_s = min(settings.interval_ms, settings.tolerance_ms / 3) / 1000
        self._renewal = runtime.threads.every(interval_s, self.renew, name=f"tablekeeper-heartbeat-{instant}")

    def check(self) -> None:
        """Raise `FencedError` if others may take this write for dead by now. Does no I/O."""
        with self._mutex:
            reason = self._ended()
        if reason is not None:
            raise FencedError(
                f"instant {self.instant}: {reason}, and it may have been rolled back. "
                f"Nothing was published; reload the table and write again."
            )

    def renew(self) -> None:
        """One beat. Faults of the store are borne until the tolerance is used up: the next beat may succeed."""
        with self._mutex:
            if self._ended() is not None:
                return
        # No mutex from here to the answer: `check` must not wait for a store that hangs.
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
        """End the beating and remove the file. Again does nothing; one that lapsed may be another's and is left.

        With `is_completed` nobody else can beat for the instant any more, and a lapsed one is removed too.
        """
        self._renewal.stop()
        with self._mutex:
            has_ended = self._ended() is not None
            self._is_stopped = True
        if not has_ended or is_completed:
            try:
                # With a name in it the file can be told from that of an executor which took the plan over. Nobody takes
                # over what is completed.
                is_ours = is_completed or not self._content
                if is_ours or load_heartbeat_owner(self._storage, self.instant) == self._content.decode():
                    self._storage.delete(self._path)
            except FencedError:
                _LOG.debug("instant %s: the heartbeat belongs to the process that ended this attempt", self.instant)
            except StorageError as error:
                _LOG.warning("instant %s: the heartbeat was left behind and will lapse: %s", self.instant, error)

    def abandon(self) -> None:
        """End the beating and leave the file to lapse: the write may still be landing, nobody may touch it yet."""
        self._renewal.stop()
        with self._mutex:
            self._is_stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _replace(self) -> bool:
        """Renew the file if it is still ours. Writing blindly would bring back what was rolled back, or end another's.

        After a refusal it is looked at once more: an earlier renewal may have landed although its answer got lost.
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
