"""Policies: what is accepted, how defaults are combined, and the windows of the day."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.policy import DEFAULT_POLICY, MINUTES_PER_DAY, DayWindow, Policy, parse_policy

WHOLE = {
    "services": ["compact", "clustering"],
    "compact_after_commits": 3,
    "order_by": ["city", "ts"],
    "layout": "zorder",
    "keep_hours": 24,
    "cancellable": True,
    "windows": ["22:00-06:00"],
    "fresh_within_s": 300,
    "max_read_amplification": 3.0,
    "options": {"hoodie.clean.commits.retained": "4"},
}


def test_a_policy_survives_its_json_form() -> None:
    policy = parse_policy(WHOLE)
    assert policy.services == (ServiceAction.COMPACTION, ServiceAction.CLUSTERING)
    assert parse_policy(policy.to_json()) == policy


@pytest.mark.parametrize(
    ("given_fields", "message"),
    [
        ({"compact_after": 3}, "no field compact_after"),
        ({"compact_after_commits": 0}, "from 1 on"),
        ({"compact_after_commits": True}, "whole number"),
        ({"compact_after_commits": "5"}, "whole number"),
        ({"services": "compaction"}, "list"),
        ({"services": ["vacuum"]}, "unknown service"),
        ({"windows": ["25:00-06:00"]}, "22:00-06:00"),
        ({"windows": ["06:00-06:00"]}, "empty"),
        ({"keep_commits": 1, "keep_hours": 1}, "not both"),
        ({"layout": "spiral"}, "zorder"),
        ({"cancellable": "yes"}, "true or false"),
        ({"max_read_amplification": 1}, "above 1"),
        ({"options": {"hoodie.compact.inlined": "1"}}, "hoodie.compact.inline"),
        ({"order_by": ["x"] * 65}, "at most 64"),
    ],
)
def test_a_field_that_is_wrong_is_named(given_fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_policy(given_fields)


def test_a_tables_policy_goes_over_its_databases_and_that_over_the_default() -> None:
    database = Policy(compact_after_commits=9, clean_after_commits=7, options={"a": "database", "b": "database"})
    table = Policy(compact_after_commits=2, options={"a": "table"})
    effective = table.over(database).over(DEFAULT_POLICY)
    assert (effective.compact_after_commits, effective.clean_after_commits) == (2, 7)
    assert effective.keep_commits == DEFAULT_POLICY.keep_commits
    assert effective.options == {"a": "table", "b": "database"}


def test_a_window_over_midnight_holds_both_sides_of_it() -> None:
    window = DayWindow.parse("22:00-06:00")
    assert window.holds(23 * 60)
    assert window.holds(5 * 60 + 59)
    assert not window.holds(6 * 60)
    assert window.minutes_until(21 * 60) == 60


@given(st.integers(0, MINUTES_PER_DAY - 1), st.integers(0, MINUTES_PER_DAY - 1), st.integers(0, MINUTES_PER_DAY - 1))
def test_waiting_for_a_window_ends_in_it(begin: int, end: int, minute: int) -> None:
    if begin == end:
        return
    window = DayWindow(begin, end)
    assert window.holds((minute + window.minutes_until(minute)) % MINUTES_PER_DAY)


def test_without_windows_the_whole_day_is_allowed() -> None:
    assert Policy().minutes_until_window(0) == 0
