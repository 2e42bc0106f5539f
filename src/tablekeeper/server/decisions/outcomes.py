"""What happens to an operation after an attempt: completed, retried later, failed, or quarantined. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablekeeper.server.model import Attempt, AttemptOutcome, Operation, Signal
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Timing

__all__ = ["Verdict", "back_off_s", "choose_engine", "judge_attempt"]

_VANISHED = (AttemptOutcome.LOST, AttemptOutcome.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the claim ends."""

    signal: Signal
    note: str
    delay_s: float = 0.0
    counts_as_failure: bool = False


def judge_attempt(
    operation: Operation,
    outcome: AttemptOutcome,
    message: str,
    *,
    max_failures: int,
    timing: Timing,
    jitter: float,
    has_fallback: bool = False,
) -> Verdict:
    """`operation` is as it was during the attempt; `jitter` in [0, 1) spreads those that failed together.

    `has_fallback`: there is another engine for what this one refuses.
    """
    match outcome:
        case AttemptOutcome.COMPLETED | AttemptOutcome.NOTHING_TO_DO:
            found_nothing = "it found nothing to do" if outcome is AttemptOutcome.NOTHING_TO_DO else ""
            return Verdict(Signal.COMPLETE, message or found_nothing)
        case AttemptOutcome.GONE | AttemptOutcome.CANCELLED:
            gone = "the plan has left the timeline" if outcome is AttemptOutcome.GONE else operation.cancel_reason
            return Verdict(Signal.CANCEL, message or gone)
        case AttemptOutcome.ELSEWHERE:
            return Verdict(Signal.RETRY, message, delay_s=timing.held_retry_s * (1 + jitter))
        case AttemptOutcome.REFUSED:
            return _refused(message, has_fallback=has_fallback)
        case _ if operation.retry_on_error and operation.failures + 1 < max_failures:
            delay_s = back_off_s(operation.failures + 1, timing, jitter=jitter)
            return Verdict(Signal.RETRY, message, delay_s=delay_s, counts_as_failure=True)
        case _:
            return _last_failure(operation, outcome, message)


def choose_engine(operation: Operation, policy: Policy, attempts: Sequence[Attempt]) -> str:
    """The engine of the next attempt: from the first refusal on, the policy's fallback."""
    fallback = policy.fallback_engine
    if fallback is not None and any(each.outcome is AttemptOutcome.REFUSED for each in attempts):
        return fallback
    return operation.engine


def back_off_s(failures: int, timing: Timing, *, jitter: float = 0.0) -> float:
    """Doubles with each failure up to the longest; at most half as long again by jitter."""
    doubled = timing.back_off_s * 2.0 ** min(max(failures - 1, 0), 40)
    return min(timing.back_off_max_s, doubled) * (1 + jitter / 2)


def _refused(message: str, *, has_fallback: bool) -> Verdict:
    if has_fallback:
        return Verdict(Signal.RETRY, f"goes to the fallback engine: {message}")
    return Verdict(Signal.FAIL, message, counts_as_failure=True)


def _last_failure(operation: Operation, outcome: AttemptOutcome, message: str) -> Verdict:
    if outcome in _VANISHED and operation.retry_on_error:
        # It kills its workers or never ends: only a person can release it.
        note = f"{operation.failures + 1} attempts vanished or ran too long: {message}"
        return Verdict(Signal.QUARANTINE, note, counts_as_failure=True)
    return Verdict(Signal.FAIL, message, counts_as_failure=True)
