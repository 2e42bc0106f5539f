"""Runs the contract suite of engines inside of a Flink program: `flink run … -py flink_contract.py OUTCOME`.

The file OUTCOME gets pytest's exit code, because `flink run` has codes of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

__all__ = ["main"]


def main(outcome: str) -> None:
    """Run them here, where the gateway to Flink is."""
    import tests  # noqa: PLC0415  (Flink starts a copy of this file, which does not lie beside the tests)

    root = Path(next(iter(tests.__path__))).parent
    os.chdir(root)
    os.environ["TABLEKEEPER_CONTRACT_ENGINE"] = "flink"
    # The suite's own conftest.py is about stores, which this environment has no packages for.
    plugins = ["--noconftest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "0"]
    # What Flink's and Beam's own modules warn of is no news. Every write of a history is a job that takes seconds.
    chosen = ["-W", "default", "--disable-warnings", "-k", "not (spark_session or flink-6 or flink-11)"]
    code = pytest.main(["tests/contract/test_engine.py", *plugins, *chosen, "-q", "--durations=5"])
    Path(outcome).write_text(str(int(code)))


if __name__ == "__main__":
    main(*sys.argv[1:])
