"""How writers share a table, under Java's keys: what goes together, and what is refused with which words."""

from __future__ import annotations

import pytest

from tablekeeper.config.concurrency_settings import (
    ConcurrencyMode,
    ConcurrencySettings,
    EarlyDetection,
    FailedWrites,
)
from tablekeeper.config.options import OPTIONS, Options
from tablekeeper.errors import InvalidRequestError

__all__: list[str] = []

MODE = "hoodie.write.concurrency.mode"
POLICY = "hoodie.clean.failed.writes.policy"
OLD_POLICY = "hoodie.cleaner.policy.failed.writes"
EARLY = "hoodie.write.concurrency.early.conflict.detection.enable"
STRATEGY = "hoodie.write.concurrency.early.conflict.detection.strategy"
COMMITS = "hoodie.write.concurrency.early.conflict.check.commit.conflict"
MARKERS = "org.apache.hudi.table.marker."
NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"


def of(options: dict[str, object]) -> ConcurrencySettings:
    return ConcurrencySettings.from_options(Options(options).given)


def test_many_writers_lazy_clean_up_and_no_early_detection_are_the_default() -> None:
    assert of({}) == ConcurrencySettings(ConcurrencyMode.OPTIMISTIC, FailedWrites.LAZY, EarlyDetection())
    assert OPTIONS[MODE].default_text == "OPTIMISTIC_CONCURRENCY_CONTROL"
    assert OPTIONS[EARLY].default_text == "false"


@pytest.mark.parametrize("mode", list(ConcurrencyMode))
def test_a_mode_is_chosen_by_the_name_of_java_in_any_case(mode: ConcurrencyMode) -> None:
    assert of({MODE: mode.value}).mode is mode
    assert of({MODE: mode.value.lower()}).mode is mode


def test_a_single_writer_rolls_failed_writes_back_at_once_unless_told_otherwise() -> None:
    assert of({MODE: "SINGLE_WRITER"}).failed_writes is FailedWrites.EAGER
    assert of({MODE: "SINGLE_WRITER", POLICY: "LAZY"}).failed_writes is FailedWrites.LAZY


@pytest.mark.parametrize("mode", ["OPTIMISTIC_CONCURRENCY_CONTROL", NON_BLOCKING])
def test_rolling_back_at_once_is_refused_where_others_write(mode: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"EAGER .* needs .*SINGLE_WRITER; the mode is " + mode):
        of({MODE: mode, POLICY: "EAGER"})
    assert of({MODE: mode, POLICY: "NEVER"}).failed_writes is FailedWrites.NEVER


def test_the_policy_has_an_older_name_that_counts_where_the_newer_one_is_not_given() -> None:
    assert of({OLD_POLICY: "never"}).failed_writes is FailedWrites.NEVER
    assert of({OLD_POLICY: "NEVER", POLICY: "LAZY"}).failed_writes is FailedWrites.LAZY


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (MODE, "OCC", "'OCC' is not known. Use one of SINGLE_WRITER"),
        (POLICY, "SOMETIMES", "'SOMETIMES' is not known. Use one of EAGER, LAZY, NEVER"),
        (OLD_POLICY, "SOMETIMES", OLD_POLICY),
        (STRATEGY, "com.example.Mine", "'Mine' is not known. Use one of Simple"),
        (EARLY, "perhaps", "'perhaps' is not a valid bool"),
    ],
)
def test_an_unknown_value_is_refused_with_those_there_are(option: str, value: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        of({option: value})


@pytest.mark.parametrize(
    ("strategy", "is_locked"),
    [
        (MARKERS + "SimpleDirectMarkerBasedDetectionStrategy", False),
        ("SimpleTransactionDirectMarkerBasedDetectionStrategy", True),
        ("org.apache.hudi.timeline.service.handlers.marker.AsyncTimelineServerBasedDetectionStrategy", False),
    ],
)
def test_a_detection_strategy_is_chosen_by_the_class_name_of_java(strategy: str, is_locked: bool) -> None:
    early = of({EARLY: True, STRATEGY: strategy, COMMITS: True}).early
    assert early == EarlyDetection(is_enabled=True, is_locked=is_locked, checks_commits=True)


@pytest.mark.parametrize("mode", ["SINGLE_WRITER", NON_BLOCKING])
def test_early_detection_is_refused_where_there_are_no_conflicts_to_find(mode: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"OPTIMISTIC_CONCURRENCY_CONTROL: in mode {mode} there is no"):
        of({MODE: mode, EARLY: "true"})


@pytest.mark.parametrize(
    ("is_mor", "has_buckets", "kind"), [(False, True, "is copy on write"), (True, False, "has no bucket index")]
)
def test_the_non_blocking_mode_is_refused_on_a_table_that_cannot_share_file_groups(
    is_mor: bool, has_buckets: bool, kind: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"merge-on-read .* simple bucket index.*; table t {kind}"):
        of({MODE: NON_BLOCKING}).refuse_unfit_table(table="t", is_mor=is_mor, has_buckets=has_buckets)


def test_every_mode_is_allowed_on_a_merge_on_read_table_with_buckets() -> None:
    for mode in ConcurrencyMode:
        of({MODE: mode.value}).refuse_unfit_table(table="t", is_mor=True, has_buckets=True)
    of({}).refuse_unfit_table(table="t", is_mor=False, has_buckets=False)
