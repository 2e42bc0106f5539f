"""A real ZooKeeper server on a free loopback port, from the jars that PySpark brings along.

It can be killed, stopped in its tracks and started again on the same port with what it had on disk, which is what
ensembles do to their clients.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from kazoo.client import KazooClient

from tests.support.freezing import freeze, thaw

_START_S = 120
_CONFIGURATION = """
tickTime=200
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
forceSync=no
"""


@dataclass
class ZookeeperServer:
    """One server; `url` is what clients connect to."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, with what an earlier run left, and wait until it serves."""
        configuration = self.folder / "zoo.cfg"
        where = f"dataDir={self.folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
        configuration.write_text(_CONFIGURATION + where)
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    _java(),
                    "-Xmx128m",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    str(_jars() / "*"),
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    str(configuration),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        with self.client(timeout_s=_START_S):
            pass

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Let it go on listening without ever answering."""
        assert self._process is not None
        freeze(self._process)

    def thaw(self) -> None:
        assert self._process is not None
        thaw(self._process)

    @contextmanager
    def client(self, *, timeout_s: float = 20) -> Iterator[KazooClient]:
        """Another client, to look at nodes and to play a foreign writer."""
        client = KazooClient(self.url, timeout=10, connection_retry={"max_tries": -1, "max_delay": 0.2})
        client.logger.disabled = True
        client.start(timeout=timeout_s)
        try:
            yield client
        finally:
            client.stop()
            client.close()


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZookeeperServer]:
    """Start a server that keeps its data in `folder`, and end it."""
    server = ZookeeperServer(folder, _free_port())
    server.start()
    try:
        yield server
    finally:
        server.kill()


def wait_for_queue(client: KazooClient, path: str, *, length: int) -> None:
    """Return as soon as the node has so many children: writers that want, or have, its lock."""
    changed = Event()
    while len(client.get_children(path, watch=lambda _: changed.set())) != length:
        assert changed.wait(120)
        changed.clear()


def _free_port() -> int:
    """A port below those that the system hands out, so that none of our connections takes it before the server does.

    Every process begins to look somewhere else, and two servers that start at the same time do not meet.
    """
    first = os.getpid() % 10_000
    for number in range(10_000):
        port = 20_000 + (first + number) % 10_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port between 20000 and 30000 is free")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else "java"


def _jars() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"
