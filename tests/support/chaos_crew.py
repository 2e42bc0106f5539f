"""Who is hurt in the chaos run and who hurts: instances of the service as users start them, and a seeded monkey.

The monkey kills instances, workers and minders with SIGKILL, lets instances and workers sleep with SIGSTOP past their
leases and heartbeats, and wakes them up again. It touches only processes of its own run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tablekeeper.client.http import ServiceClient
from tests.support.served import free_port

__all__ = ["Crew", "Instance", "Monkey", "Sleepers"]

# Short enough to see leases lapse in a run of minutes, and long enough for a machine that is short of processors.
SETTINGS = """
[timing]
lease_s = 12
renew_every_s = 2
instance_gone_s = 20
expire_every_s = 2
look_min_s = 4
look_max_s = 16
look_hold_s = 20
back_off_s = 1
back_off_max_s = 8
held_retry_s = 3
drain_s = 60
"""


@dataclass
class Instance:
    """One instance and the place where it listens."""

    number: int
    port: int
    process: subprocess.Popen[bytes]
    is_asleep: bool = False

    @property
    def client(self) -> ServiceClient:
        return ServiceClient([f"http://127.0.0.1:{self.port}"], timeout_s=4.0)


@dataclass
class Crew:
    """Instances over one database and working folder."""

    folder: Path
    url: str
    slots: int
    instances: list[Instance] = field(default_factory=list)
    starts: int = 0

    @property
    def work_dir(self) -> Path:
        return self.folder / "service"

    def start(self, count: int) -> None:
        self.work_dir.mkdir(exist_ok=True)
        (self.folder / "service.toml").write_text(SETTINGS, encoding="utf-8")
        self.instances = [self._new(number, free_port()) for number in range(count)]

    def restart(self, instance: Instance) -> None:
        """Another process in the place of one that has ended."""
        instance.process = self._new(instance.number, instance.port).process
        instance.is_asleep = False

    def stop(self, timeout_s: float) -> list[int | None]:
        """Ask all to stop (SIGTERM); their exit codes, None for one that had to be killed."""
        for each in self.instances:
            each.process.send_signal(signal.SIGCONT)
            each.process.terminate()
        codes: list[int | None] = []
        for each in self.instances:
            try:
                codes.append(each.process.wait(timeout_s))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
                codes.append(None)
        return codes

    def jobs(self) -> list[int]:
        """Processes that work for this service: workers, their minders, and what forks both, of any instance."""
        marks = (b"tablekeeper.server.engines.", str(self.work_dir).encode())
        return [pid for pid, line in _command_lines() if all(mark in line for mark in marks)]

    def workers(self) -> list[int]:
        return [pid for pid in self.jobs() if _name_of(pid).startswith("job ")]

    def _new(self, number: int, port: int) -> Instance:
        self.starts += 1
        command = [sys.executable, "-m", "tablekeeper", "serve", "--allow", str(self.folder / "lake")]
        command += ["--engine", "arrow", "--db", self.url, "--slots", str(self.slots), "--port", str(port)]
        command += ["--work-dir", str(self.work_dir), "--settings", str(self.folder / "service.toml")]
        with (self.folder / f"instance-{number}.log").open("ab") as log:
            return Instance(number, port, subprocess.Popen(command, stdout=log, stderr=log))


def _name_of(pid: int) -> str:
    """What the process calls itself; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


class Sleepers:
    """Processes that sleep, each until a moment."""

    def __init__(self) -> None:
        self._until: list[tuple[float, int, Callable[[], None]]] = []

    def send(self, pid: int, *, until_s: float, awake: Callable[[], None] = lambda: None) -> None:
        """Stop it; it is woken at that moment."""
        os.kill(pid, signal.SIGSTOP)
        self._until.append((until_s, pid, awake))

    def wake(self, now_s: float) -> None:
        """Wake those whose time has come."""
        due = [each for each in self._until if each[0] <= now_s]
        self._until = [each for each in self._until if each[0] > now_s]
        for _, pid, awake in due:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            awake()


class Monkey:
    """Does one thing at a time, by dice. `calm` ends it: everybody is awake and there again."""

    def __init__(self, crew: Crew, rng: random.Random, *, every_s: float) -> None:
        self._crew = crew
        self._rng = rng
        self._every_s = every_s
        self._next_s = 0.0
        self._sleepers = Sleepers()
        self._comebacks: list[tuple[float, Instance]] = []
        self.deeds: Counter[str] = Counter()

    def run_once(self, now_s: float) -> None:
        """What is due at this moment."""
        self._sleepers.wake(now_s)
        self._come_back(now_s)
        self._supervise(now_s)
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._rng.expovariate(1 / self._every_s)
        deed = self._rng.choices(
            (self._kill_instance, self._stop_instance, self._kill_worker, self._stop_worker, self._kill_minder),
            weights=(2, 2, 3, 3, 1),
        )[0]
        deed(now_s)

    def calm(self) -> None:
        """Wake everybody and start those that are down."""
        self._sleepers.wake(float("inf"))
        self._come_back(float("inf"))

    def _supervise(self, now_s: float) -> None:
        """As an init system would: one that ended (its database was away when it started) is started again."""
        down = {id(each) for _, each in self._comebacks}
        for instance in self._crew.instances:
            if instance.process.poll() is not None and id(instance) not in down:
                self.deeds["instances ended by themselves"] += 1
                self._comebacks.append((now_s + 2.0, instance))

    def _come_back(self, now_s: float) -> None:
        due = [each for at_s, each in self._comebacks if at_s <= now_s]
        self._comebacks = [(at_s, each) for at_s, each in self._comebacks if at_s > now_s]
        for instance in due:
            self._crew.restart(instance)

    def _kill_instance(self, now_s: float) -> None:
        instance = self._awake()
        if instance is not None:
            instance.process.kill()
            instance.process.wait()
            instance.is_asleep = True
            self._comebacks.append((now_s + self._rng.uniform(1, 6), instance))
            self.deeds["instances killed"] += 1

    def _stop_instance(self, now_s: float) -> None:
        instance = self._awake()
        if instance is not None:
            instance.is_asleep = True
            self._sleepers.send(
                instance.process.pid,
                until_s=now_s + self._rng.uniform(2, 25),
                awake=lambda: setattr(instance, "is_asleep", False),
            )
            self.deeds["instances put to sleep"] += 1

    def _kill_worker(self, _: float) -> None:
        self._kill(self._crew.workers(), "workers killed")

    def _kill_minder(self, _: float) -> None:
        self._kill(sorted(set(self._crew.jobs()) - set(self._crew.workers())), "minders killed")

    def _kill(self, pids: list[int], deed: str) -> None:
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(pids), signal.SIGKILL)
                self.deeds[deed] += 1

    def _stop_worker(self, now_s: float) -> None:
        pids = self._crew.workers()
        if pids:
            with suppress(ProcessLookupError):
                self._sleepers.send(self._rng.choice(pids), until_s=now_s + self._rng.uniform(2, 20))
                self.deeds["workers put to sleep"] += 1

    def _awake(self) -> Instance | None:
        """One that is there; never the last, because then nothing would happen for a while."""
        awake = [each for each in self._crew.instances if not each.is_asleep and each.process.poll() is None]
        return self._rng.choice(awake) if len(awake) > 1 else None


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may have ended meanwhile.
            with suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes()
