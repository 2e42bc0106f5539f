"""An instance of the service: `python -m tests.support.service_process FOLDER URL [ENGINE MASTER LEASE_S]`.

Ends on SIGTERM, after it has drained. Its times are short, so that tests see leases lapse.
"""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import open_service
from tablekeeper.server.settings import Limits, ServerSettings, Timing

__all__ = ["QUICK", "main"]

QUICK = Timing(
    renew_every_s=0.5,
    look_min_s=0.5,
    look_max_s=2.0,
    look_every_s=0.2,
    look_hold_s=5.0,
    schedule_every_s=0.2,
    watch_every_s=0.2,
    expire_every_s=0.5,
    back_off_s=0.2,
    back_off_max_s=1.0,
    held_retry_s=0.5,
    instance_gone_s=5.0,
    # What is tested is that work is waited for, on a machine that may be slow.
    drain_s=180.0,
)


def main(folder: str, url: str, engine: str = "arrow", master: str = "", lease_s: str = "4") -> None:
    """Run until asked to stop."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    places = (folder, str(Path(folder).parent))
    settings = ServerSettings(
        work_dir=Path(folder),
        database_url=url,
        allow=places,
        engine=engine,
        master=master,
        timing=replace(QUICK, lease_s=float(lease_s)),
        limits=Limits(slots=2),
    )
    service = open_service(settings, runtime=SYSTEM_RUNTIME)
    asked = SYSTEM_RUNTIME.threads.event()

    def stop(*_: Any) -> None:
        asked.set()

    signal.signal(signal.SIGTERM, stop)
    service.start()
    while not asked.wait(0.5):
        continue
    service.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
