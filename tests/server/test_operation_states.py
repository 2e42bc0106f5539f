"""The life of an operation: every edge that is drawn, and one test for each that is not."""

from __future__ import annotations

from itertools import product

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.model import (
    ForbiddenTransitionError,
    ServiceAction,
    Signal,
    Status,
    is_planned_instant,
    parse_priority,
    transition,
    unplanned_instant,
)

P, C, R = Status.PENDING, Status.CLAIMED, Status.RUNNING
DONE, FAILED, CANCELLED, QUARANTINED = Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.QUARANTINED

ALLOWED = {
    (P, Signal.CLAIM): C,
    (P, Signal.COMPLETE): DONE,
    (P, Signal.CANCEL): CANCELLED,
    (P, Signal.QUARANTINE): QUARANTINED,
    (P, Signal.REVIVE): P,
    (C, Signal.START): R,
    (C, Signal.COMPLETE): DONE,
    (C, Signal.RETRY): P,
    (C, Signal.FAIL): FAILED,
    (C, Signal.CANCEL): CANCELLED,
    (C, Signal.QUARANTINE): QUARANTINED,
    (R, Signal.COMPLETE): DONE,
    (R, Signal.RETRY): P,
    (R, Signal.FAIL): FAILED,
    (R, Signal.CANCEL): CANCELLED,
    (R, Signal.QUARANTINE): QUARANTINED,
    (QUARANTINED, Signal.CANCEL): CANCELLED,
    (QUARANTINED, Signal.REVIVE): P,
    (FAILED, Signal.REVIVE): P,
    (FAILED, Signal.CANCEL): CANCELLED,
    (CANCELLED, Signal.REVIVE): P,
}
FORBIDDEN = [edge for edge in product(Status, Signal) if edge not in ALLOWED]


@pytest.mark.parametrize(("status", "signal"), ALLOWED, ids=lambda each: each.name.lower())
def test_an_edge_that_is_drawn_leads_where_it_says(status: Status, signal: Signal) -> None:
    assert transition(status, signal) is ALLOWED[status, signal]


@pytest.mark.parametrize(("status", "signal"), FORBIDDEN, ids=lambda each: each.name.lower())
def test_an_edge_that_is_not_drawn_is_refused(status: Status, signal: Signal) -> None:
    with pytest.raises(ForbiddenTransitionError, match=status.word) as refused:
        transition(status, signal)
    assert (refused.value.status, refused.value.signal) == (status, signal)


def test_nothing_leaves_completed() -> None:
    assert not [signal for status, signal in ALLOWED if status is DONE]


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("compact", ServiceAction.COMPACTION),
        ("Log-Compaction", ServiceAction.LOG_COMPACTION),
        ("logcompact", ServiceAction.LOG_COMPACTION),
        ("CLUSTER", ServiceAction.CLUSTERING),
        ("clean", ServiceAction.CLEAN),
    ],
)
def test_an_action_is_known_by_the_names_that_clients_use(name: str, action: ServiceAction) -> None:
    assert ServiceAction.parse(name) is action


def test_an_unknown_action_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="compaction, log_compaction, clustering, clean, archive"):
        ServiceAction.parse("vacuum")


def test_an_operation_without_a_plan_has_no_instant_of_the_timeline() -> None:
    assert not is_planned_instant(unplanned_instant(ServiceAction.CLEAN, "20261118120000000"))
    assert is_planned_instant("20261118120000000")


@pytest.mark.parametrize(("text", "priority"), [("high", 8), ("Normal", 5), ("0", 0), ("9", 9)])
def test_a_priority_is_a_digit_or_a_word(text: str, priority: int) -> None:
    assert parse_priority(text) == priority


@pytest.mark.parametrize("text", ["", "10", "-1", "urgent", "٣"])
def test_another_priority_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="0 to 9"):
        parse_priority(text)
