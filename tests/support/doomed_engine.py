"""The Spark engine with one task that never ends by itself: whoever waits for it has to kill its worker.

The first task of the step that is asked for says in which session of the operating system it runs, and then waits. A
task that comes after it, its own second attempt too, runs as ever.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tablekeeper.engine.spark import SparkEngine
from tablekeeper.runtime import SYSTEM_RUNTIME

__all__ = ["DoomedEngine"]

_LONGEST_WAIT_S = 200.0


class DoomedEngine(SparkEngine):
    """Runs everything in executors. The doomed task of the step `label` names its session in the file `sign`."""

    def __init__(self, spark: Any, *, label: str, sign: Path) -> None:
        super().__init__(spark, driver_bytes=0)
        self._label = label
        self._sign = str(sign)

    def run(self, kernel: Any, tasks: Sequence[Any], *, label: str, weights: Sequence[float] = ()) -> list[Any]:
        return super().run(self._doomed(kernel, label), tasks, label=label, weights=weights)

    def consume(self, kernel: Any, context: Any, source: Any, *, label: str, parts: int = 0) -> list[Any]:
        return super().consume(self._doomed(kernel, label), context, source, label=label, parts=parts)

    def _doomed(self, kernel: Any, label: str) -> Any:
        return partial(_wait_once, kernel, self._sign) if label == self._label else kernel


def _wait_once(kernel: Any, sign: str, *given: Any) -> Any:
    try:
        with open(sign, "x", encoding="ascii") as file:
            file.write(f"{os.getsid(0)}\n")
    except FileExistsError:
        return kernel(*given)
    SYSTEM_RUNTIME.clock.sleep(_LONGEST_WAIT_S)
    raise AssertionError("nobody killed the worker")
