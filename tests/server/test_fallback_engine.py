"""What an engine refuses goes to the policy's fallback engine, or fails with the reason and an alarm."""

from __future__ import annotations

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.decisions.outcomes import choose_engine, judge_attempt
from tablekeeper.server.model import Attempt, AttemptOutcome, Operation, ServiceAction, Signal, Status
from tablekeeper.server.policy import Policy, parse_policy
from tablekeeper.server.settings import Timing

OPERATION = Operation(1, 1, "20261118120000000", ServiceAction.COMPACTION, Status.RUNNING, engine="arrow")


def attempt(engine: str, outcome: AttemptOutcome) -> Attempt:
    return Attempt(1, 1, engine, "i", outcome)


@pytest.mark.parametrize(
    ("policy", "attempts", "engine"),
    [
        (Policy(fallback_engine="hudi-java"), [], "arrow"),
        (Policy(fallback_engine="hudi-java"), [attempt("arrow", AttemptOutcome.FAILED)], "arrow"),
        (Policy(fallback_engine="hudi-java"), [attempt("arrow", AttemptOutcome.REFUSED)], "hudi-java"),
        (Policy(), [attempt("arrow", AttemptOutcome.REFUSED)], "arrow"),
    ],
)
def test_the_fallback_engine_gets_what_another_one_has_refused(
    policy: Policy, attempts: list[Attempt], engine: str
) -> None:
    assert choose_engine(OPERATION, policy, attempts) == engine


@pytest.mark.parametrize(("has_fallback", "signal"), [(True, Signal.RETRY), (False, Signal.FAIL)])
def test_a_refusal_is_the_end_without_another_engine(has_fallback: bool, signal: Signal) -> None:
    verdict = judge_attempt(
        OPERATION,
        AttemptOutcome.REFUSED,
        "would leave the index expr_index_day wrong",
        max_failures=5,
        timing=Timing(),
        jitter=0.0,
        has_fallback=has_fallback,
    )
    assert verdict.signal is signal
    assert "expr_index_day" in verdict.note
    assert verdict.counts_as_failure is not has_fallback


@pytest.mark.parametrize("name", ["tablekeeper.metadata.index.drop", "hoodie.metadata.enable"])
def test_no_policy_takes_indexes_away(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="indexes away"):
        parse_policy({"options": {name: "true"}})
