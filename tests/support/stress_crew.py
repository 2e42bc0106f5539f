"""The processes of a stress run: started, killed at random and started again, and at last asked to stop."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.stress_service import SERVICE_JOURNAL
from tests.support.stress_worker import StressPlan

__all__ = ["Crew", "Member", "kill_at_random", "service", "writer"]

ROOT = Path(__file__).parents[2]
_START_S = 180
_STOP_S = 180


@dataclass(frozen=True, slots=True)
class Member:
    """One place in the crew; who is killed is replaced by a process with the same name and another seed."""

    name: str
    module: str
    journal: str
    more: tuple[str, ...] = ()


def writer(number: int) -> Member:
    return Member(str(number), "tests.support.stress_worker", f"journal-{number}")


def service(number: int, jobs: Sequence[str]) -> Member:
    """A process that does these jobs in turn."""
    name = str(number)
    return Member(name, "tests.support.stress_service", f"{SERVICE_JOURNAL}-{name}", (",".join(jobs),))


class Crew:
    """The processes of a run."""

    def __init__(self, plan: StressPlan, *, seed: int) -> None:
        self._plan = plan
        self._path = plan.save()
        self._seeds = iter(range(seed * 1_000, (seed + 1) * 1_000))
        self._running: dict[Member, tuple[int, subprocess.Popen[bytes]]] = {}

    def start(self, member: Member) -> None:
        seed = next(self._seeds)
        command = [sys.executable, "-m", member.module, str(self._path), member.name, str(seed), *member.more]
        self._running[member] = seed, subprocess.Popen(command, cwd=ROOT)

    def at_work(self) -> list[Member]:
        """Those that have begun. One that ended by itself is a fault of the run."""
        ended = [member for member, (_, process) in self._running.items() if process.poll() is not None]
        if ended:
            raise AssertionError(f"{ended} ended by themselves; see their output above")
        folder = Path(self._plan.folder)
        return [m for m, (seed, _) in self._running.items() if (folder / f"{m.journal}-{seed}").exists()]

    def wait_for_all(self) -> None:
        """The time of a run begins when all are running, however long a busy machine takes to start them."""
        deadline = time.monotonic() + _START_S
        while len(self.at_work()) < len(self._running):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {_START_S} s only {self.at_work()} are running")
            SYSTEM_RUNTIME.clock.sleep(0.1)

    def kill(self, member: Member) -> None:
        _, process = self._running[member]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_all(self) -> None:
        for member in self._running:
            self.kill(member)

    def wait_until(self, is_enough: Callable[[], bool], *, most_s: float) -> None:
        """Let everybody work in peace until it is enough, or so much time has passed."""
        deadline = time.monotonic() + most_s
        while not is_enough() and time.monotonic() < deadline:
            self.at_work()
            SYSTEM_RUNTIME.clock.sleep(0.2)

    def stop(self) -> None:
        """Tell all to stop, and wait for what they are doing."""
        self._plan.stop_file.touch()
        deadline = time.monotonic() + _STOP_S
        statuses = [process.wait(timeout=deadline - time.monotonic()) for _, process in self._running.values()]
        if any(statuses):
            raise AssertionError("a process ended with an error; see its output above")


def kill_at_random(crew: Crew, chance: random.Random, *, seconds: float, kill_every_s: float) -> int:
    """Kill somebody every now and then, and start another one in the same place. Returns how many were killed."""
    kills = 0
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        SYSTEM_RUNTIME.clock.sleep(min(left, chance.uniform(0.2, 1.8) * kill_every_s))
        candidates = crew.at_work()
        if candidates and time.monotonic() < deadline:
            victim = chance.choice(candidates)
            crew.kill(victim)
            kills += 1
            crew.start(victim)
    return kills
