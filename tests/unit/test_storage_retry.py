"""Bounded retries on a clock that the test owns."""

from __future__ import annotations

import pytest

from tablekeeper.errors import NotFoundError, StorageError
from tablekeeper.storage.retry import RetryPolicy, retry_delays_s, retry_transient
from tests.support.fake_runtime import fake_runtime

POLICY = RetryPolicy(attempts=4, base_s=1.0, cap_s=3.0)


class Flaky:
    """Fails `failures` times, then answers."""

    def __init__(self, failures: int, *, transient: bool = True) -> None:
        self.failures = failures
        self.transient = transient
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise StorageError(f"failure {self.calls}", transient=self.transient)
        return "answer"


def test_an_operation_that_works_is_not_waited_for() -> None:
    runtime, clock = fake_runtime()
    assert retry_transient(Flaky(0), policy=POLICY, runtime=runtime) == "answer"
    assert clock.slept_s == []


def test_waits_double_up_to_the_cap_and_are_jittered() -> None:
    runtime, clock = fake_runtime()
    assert retry_transient(Flaky(3), policy=POLICY, runtime=runtime) == "answer"
    assert clock.slept_s == [0.5, 1.0, 1.5]
    assert list(retry_delays_s(POLICY, runtime)) == clock.slept_s


def test_the_last_failure_is_raised_when_the_tries_are_used_up() -> None:
    runtime, clock = fake_runtime()
    flaky = Flaky(10)
    with pytest.raises(StorageError, match="failure 4"):
        retry_transient(flaky, policy=POLICY, runtime=runtime)
    assert flaky.calls == 4
    assert len(clock.slept_s) == 3


def test_a_fault_that_will_not_pass_is_raised_at_once() -> None:
    runtime, clock = fake_runtime()
    flaky = Flaky(1, transient=False)
    with pytest.raises(StorageError, match="failure 1"):
        retry_transient(flaky, policy=POLICY, runtime=runtime)
    assert clock.slept_s == []


def test_a_missing_object_is_not_asked_for_again() -> None:
    runtime, clock = fake_runtime()

    def look() -> None:
        raise NotFoundError("a")

    with pytest.raises(NotFoundError):
        retry_transient(look, policy=POLICY, runtime=runtime)
    assert clock.slept_s == []


def test_one_attempt_means_no_retry() -> None:
    runtime, clock = fake_runtime()
    with pytest.raises(StorageError):
        retry_transient(Flaky(1), policy=RetryPolicy(attempts=1), runtime=runtime)
    assert clock.slept_s == []
