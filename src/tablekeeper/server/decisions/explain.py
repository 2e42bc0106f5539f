"""Why an operation waits, or why it ran when it did, in sentences. Pure."""

from __future__ import annotations

from tablekeeper.server.decisions.choose import tell_order, urgencies, what_holds_back
from tablekeeper.server.decisions.spans import span_text
from tablekeeper.server.model import Attempt, AttemptOutcome, ManagedTable, Operation, Status
from tablekeeper.server.settings import Limits
from tablekeeper.server.store.protocol import Load, Queued

__all__ = ["explain_operation"]


def explain_operation(
    operation: Operation, table: ManagedTable, attempts: list[Attempt], load: Load, limits: Limits, *, now_ms: int
) -> list[str]:
    """Sentences, the most telling first."""
    why = [f"Why it is here: {operation.why}."] if operation.why else []
    match operation.status:
        case Status.PENDING:
            return [*_waiting(operation, table, load, limits, now_ms), *why, *_past(attempts, operation.note)]
        case Status.CLAIMED | Status.RUNNING:
            until_s = ((operation.lease_until_ms or now_ms) - now_ms) / 1000
            held = f"Instance {operation.instance_id} is executing it; its lease lasts {until_s:.0f} s if not renewed."
            asked = _sentence("It was asked to stop", operation.cancel_reason) if operation.cancel_reason else ""
            turn = attempts[0].why if attempts and attempts[0].outcome is AttemptOutcome.RUNNING else ""
            came = f"Its turn came by {turn}." if turn else ""
            return [held, *filter(None, [asked, came]), *why, *_past(attempts, operation.note)]
        case _:
            ended = "has failed" if operation.status is Status.FAILED else f"is {operation.status.word}"
            return [_sentence(f"It {ended}", operation.note), *why, *_past(attempts, operation.note)]


def _waiting(operation: Operation, table: ManagedTable, load: Load, limits: Limits, now_ms: int) -> list[str]:
    if table.quarantine:
        return [_sentence("It waits because the table is quarantined", table.quarantine)]
    if table.is_paused:
        return ["It waits because the table is paused."]
    if operation.not_before_ms > now_ms:
        until = f"It waits {span_text((operation.not_before_ms - now_ms) / 1000)} more"
        failures = f"{operation.failures} failure{'' if operation.failures == 1 else 's'}"
        after = f" after {failures}" if operation.failures else ""
        return [_sentence(f"{until}{after}" if operation.note else until, operation.note)]
    queued = _queued(operation, now_ms)
    held_back = what_holds_back(queued, load, limits)
    if held_back:
        return [f"It waits because {held_back}."]
    gained = urgencies([*load.queued, queued])
    before = [each for each in load.queued if gained[each.priority] > gained[queued.priority]]
    turn = tell_order(queued, load)
    return [f"It waits for a free slot; {len(before)} operations are more urgent. Its turn comes by {turn}."]


def _queued(operation: Operation, now_ms: int) -> Queued:
    deadline = None if operation.deadline_ms is None else (operation.deadline_ms - now_ms) / 1000
    return Queued(
        operation.operation_id,
        operation.table_id,
        operation.action,
        operation.queue,
        operation.owner,
        operation.priority,
        deadline,
        max(0.0, (now_ms - operation.not_before_ms) / 1000),
    )


def _past(attempts: list[Attempt], told: str) -> list[str]:
    """The last ones. What was `told` of the operation is not repeated."""
    ended = [each for each in attempts if each.outcome is not AttemptOutcome.RUNNING]
    return [
        _sentence(
            f"Attempt {each.number} on {each.engine}: {each.outcome.value.replace('_', ' ')}",
            each.message if each.message != told else "",
        )
        + (f" Its turn came by {each.why}." if each.why else "")
        for each in ended[:5]
    ]


def _sentence(text: str, reason: str = "") -> str:
    """Errors have their own full stop, or none."""
    return f"{f'{text}: {reason}' if reason else text}".rstrip(". ") + "."
