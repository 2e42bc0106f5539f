"""`import tablekeeper` is quick: it brings in nothing that only some of its users need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("kazoo", "obstore", "pandas", "py4j", "pyflink", "pyspark", "rich", "typer")


def imported_by(statement: str) -> set[str]:
    """Packages that a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_tablekeeper_imports_no_optional_or_slow_package() -> None:
    loaded = imported_by("import tablekeeper; tablekeeper.Table")
    assert "pyarrow" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded.intersection(HEAVY))


def test_the_process_that_minds_a_job_starts_without_arrow() -> None:
    """There is one beside every worker of the service."""
    loaded = imported_by("import tablekeeper.server.engines.minder")
    assert "tablekeeper" in loaded
    assert "pyarrow" not in loaded
