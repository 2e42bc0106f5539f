"""Settings of the clean: what is kept, when a clean is due, and how wide it works, under the keys that Java users know.

Older names of a key count where the newer one is not given. Where only one of the three kept amounts is given and
no policy, the amount says the policy, as in Java.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.config.keys import AUTOMATIC_CLEAN
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["CLEAN_OPTIONS", "CleanPolicy", "CleanSettings"]

_POLICY = "hoodie.clean.policy"
_COMMITS = "hoodie.clean.commits.retained"
_HOURS = "hoodie.clean.hours.retained"
_VERSIONS = "hoodie.clean.fileversions.retained"
_INCREMENTAL = "hoodie.clean.incremental.enabled"
_ASYNC = "hoodie.clean.async.enabled"
_STRATEGY = "hoodie.clean.trigger.strategy"
_TRIGGER = "hoodie.clean.trigger.max.commits"
_PARALLELISM = "hoodie.clean.parallelism"
_MOST = "hoodie.clean.max.commits.to.clean"
_EMPTY = "hoodie.write.empty.clean.interval.hours"
_NUM_COMMITS = "NUM_COMMITS"

_OLDER_NAMES = {
    _POLICY: "hoodie.cleaner.policy",
    _COMMITS: "hoodie.cleaner.commits.retained",
    _HOURS: "hoodie.cleaner.hours.retained",
    _VERSIONS: "hoodie.cleaner.fileversions.retained",
    _INCREMENTAL: "hoodie.cleaner.incremental.mode",
    _ASYNC: "hoodie.clean.async",
    _TRIGGER: "hoodie.clean.max.commits",
    _PARALLELISM: "hoodie.cleaner.parallelism",
}

_KINDS: dict[str, type] = {_INCREMENTAL: bool, _ASYNC: bool, _POLICY: str}

CLEAN_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (_POLICY, "KEEP_LATEST_COMMITS", str, "What a clean keeps: KEEP_LATEST_COMMITS, _BY_HOURS or _FILE_VERSIONS."),
    (_COMMITS, "10", int, "Commits that stay readable, with KEEP_LATEST_COMMITS."),
    (_HOURS, "24", int, "Hours back that stay readable, with KEEP_LATEST_BY_HOURS."),
    (_VERSIONS, "3", int, "Versions that each file group keeps, with KEEP_LATEST_FILE_VERSIONS."),
    (_INCREMENTAL, "true", bool, "Look only into partitions that were touched since the last clean."),
    (AUTOMATIC_CLEAN, "true", bool, "Clean after each commit, where cleans run inline."),
    (_ASYNC, "false", bool, "Such cleans run beside the writes instead of after them."),
    (_STRATEGY, _NUM_COMMITS, str, "When a clean is due; NUM_COMMITS is the one there is."),
    (_TRIGGER, "1", int, "Commits since the last clean that make the next one due."),
    (_PARALLELISM, "200", int, "Most deletions and listings of a clean that run at once."),
    (_MOST, None, int, "Most commits that one clean leaves behind the retained ones; without a bound by default."),
    (_EMPTY, "-1", int, "Hours after which a clean that finds nothing is recorded all the same; -1 is never."),
    *((old, None, _KINDS.get(new, int), f"Older name of {new}.") for new, old in _OLDER_NAMES.items()),
)
"""Known options as (name, default, type, meaning)."""

_DEFAULTS = {name: default for name, default, _, _ in CLEAN_OPTIONS}


class CleanPolicy(enum.Enum):
    """By what a clean decides which old files stay; the value is Hudi's name for it."""

    COMMITS = "KEEP_LATEST_COMMITS"
    HOURS = "KEEP_LATEST_BY_HOURS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """What a clean keeps and how it goes about it. Of `commits`, `hours` and `versions` the policy uses one.

    `trigger_commits` and `is_automatic` are for those who run cleans by themselves; a clean that is asked for runs.
    """

    policy: CleanPolicy = CleanPolicy.COMMITS
    commits: int = 10
    hours: int = 24
    versions: int = 3
    incremental: bool = True
    is_automatic: bool = True
    is_async: bool = False
    trigger_commits: int = 1
    parallelism: int = 200
    most_commits: int | None = None
    empty_interval_hours: int = -1

    def __post_init__(self) -> None:
        _at_least(_COMMITS, self.commits, 1)
        _at_least(_HOURS, self.hours, 1)
        _at_least(_VERSIONS, self.versions, 1)
        _at_least(_TRIGGER, self.trigger_commits, 1)
        _at_least(_PARALLELISM, self.parallelism, 1)
        _at_least(_EMPTY, self.empty_interval_hours, -1)
        if self.most_commits is not None:
            _at_least(_MOST, self.most_commits, 1)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> CleanSettings:
        """From options by name; the defaults where they say nothing."""
        strategy = _text(options, _STRATEGY).upper()
        if strategy != _NUM_COMMITS:
            raise UnsupportedFeatureError(f"{_STRATEGY}: {strategy} is not supported. Use {_NUM_COMMITS}.")
        return cls(
            policy=_policy(options),
            commits=_whole(options, _COMMITS),
            hours=_whole(options, _HOURS),
            versions=_whole(options, _VERSIONS),
            incremental=_text(options, _INCREMENTAL).lower() == "true",
            is_automatic=_text(options, AUTOMATIC_CLEAN).lower() == "true",
            is_async=_text(options, _ASYNC).lower() == "true",
            trigger_commits=_whole(options, _TRIGGER),
            parallelism=_whole(options, _PARALLELISM),
            most_commits=_whole(options, _MOST) if _text(options, _MOST) else None,
            empty_interval_hours=_whole(options, _EMPTY),
        )

    @property
    def kept(self) -> str:
        """What is kept, in words."""
        amounts = {
            CleanPolicy.COMMITS: f"the latest {self.commits} commits",
            CleanPolicy.HOURS: f"the commits of the last {self.hours} hours",
            CleanPolicy.VERSIONS: f"the latest {self.versions} versions of each file group",
        }
        return amounts[self.policy]


def _policy(options: Mapping[str, str]) -> CleanPolicy:
    if not _is_given(options, _POLICY):
        by_amount = {_COMMITS: CleanPolicy.COMMITS, _HOURS: CleanPolicy.HOURS, _VERSIONS: CleanPolicy.VERSIONS}
        given = [policy for name, policy in by_amount.items() if _is_given(options, name)]
        return given[0] if len(given) == 1 else CleanPolicy.COMMITS
    name = _text(options, _POLICY).upper()
    try:
        return CleanPolicy(name)
    except ValueError:
        known = ", ".join(policy.value for policy in CleanPolicy)
        raise InvalidRequestError(f"{_POLICY}: {name!r} is not known. Use one of {known}.") from None


def _is_given(options: Mapping[str, str], name: str) -> bool:
    return bool(options.get(name) or options.get(_OLDER_NAMES.get(name, name)))


def _text(options: Mapping[str, str], name: str) -> str:
    return options.get(name) or options.get(_OLDER_NAMES.get(name, name)) or _DEFAULTS[name] or ""


def _whole(options: Mapping[str, str], name: str) -> int:
    text = _text(options, name)
    try:
        return int(text)
    except ValueError:
        raise InvalidRequestError(f"{name}: {text!r} is not a whole number. Correct or remove it.") from None


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidRequestError(f"{name}: {value} is too small, the least is {least}. Raise it.")
