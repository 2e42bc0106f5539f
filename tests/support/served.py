"""The service as its users start it: `tablekeeper serve` in a process, on SQLite, with the engine arrow."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tablekeeper.client.http import ServiceClient, ServiceUnreachableError
from tablekeeper.runtime import SYSTEM_RUNTIME

__all__ = ["Served", "free_port", "running_service"]

_TIMEOUT_S = 90.0
_DRAIN_S = 60.0


class Served:
    """A running service: its address, and where its output goes."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self.log = log

    def client(self, *, token: str = "") -> ServiceClient:
        return ServiceClient([self.url], token=token)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_service(work_dir: Path, *, allow: Path | str, arguments: Sequence[str] = ()) -> Iterator[Served]:
    """Start it, wait until it answers, and stop it in order at the end."""
    work_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", work_dir / "output.log")
    command = [sys.executable, "-m", "tablekeeper", "serve", "--allow", str(allow), "--engine", "arrow"]
    command += ["--work-dir", str(work_dir), "--port", str(port), *arguments]
    with served.log.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            _wait_until_up(served, process)
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_DRAIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _wait_until_up(served: Served, process: subprocess.Popen[bytes]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while True:
        try:
            served.client().get("/healthz")
        except ServiceUnreachableError:
            assert process.poll() is None, served.log.read_text()
            assert clock.monotonic_s() < until_s, served.log.read_text()
            clock.sleep(0.1)
        else:
            return
