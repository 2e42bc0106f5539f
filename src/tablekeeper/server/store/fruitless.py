"""Services that found nothing to do: on which state of the timeline a table last gave one no work.

The timeline does not tell: a clean or an archive that finds nothing leaves no instant behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from tablekeeper.server.model import AttemptOutcome, ServiceAction, Status
from tablekeeper.server.store.protocol import OperationFilter, OperationStore, Page

__all__ = ["load_found_nothing"]


def load_found_nothing(
    store: OperationStore, table_id: int, actions: Iterable[ServiceAction]
) -> dict[ServiceAction, str]:
    """The newest time of the timeline, for those of `actions` whose last operation found nothing to do on it."""
    found = {}
    for action in sorted(actions, key=lambda each: each.value):
        wanted = OperationFilter(table_id=table_id, statuses=(Status.COMPLETED,), actions=(action,))
        for operation in store.list_operations(wanted, Page(limit=1)):
            time = operation.instant.partition("@")[2]
            # One that somebody asked for says when it was asked for, not on which state of the timeline.
            if time.isdigit() and _found_nothing(store, operation.operation_id):
                found[action] = time
    return found


def _found_nothing(store: OperationStore, operation_id: int) -> bool:
    attempts = store.load_attempts(operation_id)
    return bool(attempts) and attempts[0].outcome is AttemptOutcome.NOTHING_TO_DO
