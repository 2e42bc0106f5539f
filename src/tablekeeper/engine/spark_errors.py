"""Our errors that are raised in a Spark worker, brought back whole where we wait for the job.

Spark hands over nothing but the text of a worker's exception. So an error that must survive the way gets a line with
its type and fields as JSON, and the driver looks for that line. JSON and not a pickle: the text also holds
what tables contain, and must not be able to run anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PythonException

from tablekeeper import errors
from tablekeeper.errors import TablekeeperError

__all__ = ["our_errors", "signed_errors"]

_MARK = "tablekeeper error: "


@contextmanager
def signed_errors() -> Iterator[None]:
    """In a worker: one of our errors leaves the block with a line that `our_errors` understands."""
    try:
        yield
    except TablekeeperError as error:
        fields = {name: value for name, value in error.__dict__.items() if name != "__notes__"}
        known = {"type": type(error).__name__, "args": error.args, "fields": fields}
        error.add_note(_MARK + json.dumps(known, default=str))
        raise


@contextmanager
def our_errors() -> Iterator[None]:
    """Around a job: one of our errors in one of its workers is raised as itself; what Spark said of it is its cause."""
    try:
        yield
    except PythonException as failure:
        error = _find(str(failure))
        if error is None:
            raise
        raise error from failure


def _find(text: str) -> TablekeeperError | None:
    signed = [line.split(_MARK, 1)[1] for line in text.splitlines() if _MARK in line]
    try:
        known = json.loads(signed[-1])
        kind = getattr(errors, known["type"])
        error = kind.__new__(kind, *known["args"])
        error.__dict__.update(known["fields"])
    except (IndexError, KeyError, ValueError, TypeError, AttributeError):
        return None
    return error if isinstance(error, TablekeeperError) else None
