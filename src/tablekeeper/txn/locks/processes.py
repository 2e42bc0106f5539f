"""Which process left a lock behind, and whether it is still running.

A process is named by machine boot, pid namespace, pid and start time, so that neither a reused pid
nor a container of the same machine is taken for it. Death is claimed only with proof: for a process
of another machine, another container, or a system without `/proc`, the answer is always "not dead".
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["LinuxProcesses", "ProcessId", "Processes", "process_name"]

_HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process in the world. `machine` is empty where it cannot be known."""

    host: str
    machine: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> dict[str, str | int]:
        """As it is written into a lock."""
        return {"host": self.host, "machine": self.machine, "pid": self.pid, "started": self.started}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ProcessId:
        """From what a lock says; `KeyError`, `TypeError` or `ValueError` if it is something else."""
        return cls(
            host=str(fields["host"]),
            machine=str(fields["machine"]),
            pid=int(fields["pid"]),
            started=str(fields["started"]),
        )


class Processes(Protocol):
    """What can be known about processes."""

    def me(self) -> ProcessId:
        """The process that asks."""
        ...

    def is_dead(self, process: ProcessId) -> bool:
        """True only if it certainly does not run any more."""
        ...


class LinuxProcesses:
    """Reads `/proc`."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root

    def me(self) -> ProcessId:
        pid = os.getpid()
        found = self._start(pid)
        return ProcessId(
            host=socket.gethostname(),
            machine=self._machine(),
            pid=pid,
            started="" if found is None else found,
        )

    def is_dead(self, process: ProcessId) -> bool:
        machine = self._machine()
        if not machine or process.machine != machine or not process.started:
            return False
        return self._start(process.pid) not in (process.started, _HIDDEN)

    def _machine(self) -> str:
        try:
            boot = (self._root / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot}/{(self._root / 'self/ns/pid').readlink()}"
        except OSError:
            return ""

    def _start(self, pid: int) -> str | None:
        """Start time in clock ticks since boot; None if there is no such process, or only its remains."""
        home = self._root / str(pid)
        try:
            fields = (home / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            is_remains = fields[0] in "ZX" and len(list((home / "task").iterdir())) <= 1
        except (FileNotFoundError, ProcessLookupError):
            return _HIDDEN if _exists(pid) else None
        return None if is_remains else fields[19]


def process_name() -> str:
    """Who this process is, for others to read: host and process id."""
    me = LinuxProcesses().me()
    return f"{me.host}:{me.pid}"


def _exists(pid: int) -> bool:
    """Asked of the kernel: `/proc` may be mounted so that it hides the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
