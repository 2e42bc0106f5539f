"""Clean: delete files that no read inside the retained window needs any more.

| module | what it does |
|---|---|
| `plan` | which files go and why, pure |
| `view` | loads what the plan is made on, only of partitions that were touched |
| `publish` | puts the plan on the timeline under the lock, after checking what is new |
| `guard` | one process at a time executes a clean |
| `execute` | deletes, brings the metadata table up to date, completes; finishes what others left |
| `leftovers` | rolls back dead writes before planning |
| `explain` | shows what `plan` would do |
"""

from tablekeeper.services.clean.execute import Progress, execute_clean, finish_cleans
from tablekeeper.services.clean.explain import CleanExplanation, explain_clean, is_clean_due
from tablekeeper.services.clean.plan import CleanDraft, CleanView, Fate, plan_clean
from tablekeeper.services.clean.publish import schedule_clean
from tablekeeper.services.clean.results import CleanResult

__all__ = [
    "CleanDraft",
    "CleanExplanation",
    "CleanResult",
    "CleanView",
    "Fate",
    "Progress",
    "execute_clean",
    "explain_clean",
    "finish_cleans",
    "is_clean_due",
    "plan_clean",
    "schedule_clean",
]
