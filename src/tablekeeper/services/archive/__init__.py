"""The archive: old completed instants move from the active timeline into the archived one, as Java lays it out.

`plan.py` decides what may go, `execute.py` moves it.
"""

from tablekeeper.services.archive.execute import execute_archive, explain_archive
from tablekeeper.services.archive.plan import ActiveAction, ArchivePlan, ArchiveView, Bound, plan_archive
from tablekeeper.services.archive.result import ArchiveResult

__all__ = [
    "ActiveAction",
    "ArchivePlan",
    "ArchiveResult",
    "ArchiveView",
    "Bound",
    "execute_archive",
    "explain_archive",
    "plan_archive",
]
