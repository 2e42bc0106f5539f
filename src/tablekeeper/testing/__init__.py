"""A simulator that owns time, storage and death: many processes on one table, in one process, from one seed.

The code of tables runs unmodified. Every call of the store, every reading of a clock, every sleep and every thread
belongs to a seeded scheduler, which also lets processes die, sleep or lose answers, and checks what must always hold.
One seed and one version of the code give the same run, always. `python -m tablekeeper.testing --help` plays many.

    from tablekeeper.testing import draw_history, play

    outcome = play(draw_history(7))
    assert not outcome.complaints
"""

from importlib import import_module
from importlib.util import find_spec

from tablekeeper.testing.campaign import Campaign
from tablekeeper.testing.draw import draw_history
from tablekeeper.testing.history import Actor, Fault, FaultKind, History, Job, Shape
from tablekeeper.testing.jobs import JOBS, job
from tablekeeper.testing.play import Outcome, play
from tablekeeper.testing.report import describe_history, draw_timeline, trace_lines
from tablekeeper.testing.shrink import shrink
from tablekeeper.testing.verdict import INVARIANTS, invariant

__all__ = [
    "INVARIANTS",
    "JOBS",
    "Actor",
    "Campaign",
    "Fault",
    "FaultKind",
    "History",
    "Job",
    "Outcome",
    "Shape",
    "describe_history",
    "draw_history",
    "draw_timeline",
    "invariant",
    "job",
    "play",
    "shrink",
    "trace_lines",
]

# With the extra `service` histories are about the management service, too.
if all(find_spec(name) is not None for name in ("alembic", "prometheus_client", "sqlalchemy")):
    import_module("tablekeeper.testing.service")
