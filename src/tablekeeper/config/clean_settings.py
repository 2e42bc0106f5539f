"""Settings of the clean: what is kept, when a clean is due, and how wide it works, under the keys that Java users know.

Older names of a key count where the newer one is not given. Where only one of the three kept amounts is given and
no policy, the amount says the policy, as in Java.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from tablekeeper.config.keys import AUTOMATIC_CLEAN
from tablekeeper.config.registry import Setting, Settings, setting
from tablekeeper.errors import UnsupportedFeatureError

__all__ = ["CleanPolicy", "CleanSettings"]

_NUM_COMMITS = "NUM_COMMITS"
_STRATEGY = Setting(
    "hoodie.clean.trigger.strategy", _NUM_COMMITS, "When a clean is due; only NUM_COMMITS is supported."
)


class CleanPolicy(enum.Enum):
    """By what a clean decides which old files stay; the value is Hudi's name for it."""

    COMMITS = "KEEP_LATEST_COMMITS"
    HOURS = "KEEP_LATEST_BY_HOURS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"


_AMOUNTS = {"commits": CleanPolicy.COMMITS, "hours": CleanPolicy.HOURS, "versions": CleanPolicy.VERSIONS}


@dataclass(frozen=True, slots=True)
class CleanSettings(Settings):
    """What a clean keeps and how it goes about it. Of `commits`, `hours` and `versions` the policy uses one.

    `trigger_commits` and `is_automatic` are for those who run cleans by themselves; a clean that is asked for runs.
    """

    policy: CleanPolicy = setting(
        "hoodie.clean.policy",
        CleanPolicy.COMMITS,
        "What a clean keeps: KEEP_LATEST_COMMITS, _BY_HOURS or _FILE_VERSIONS.",
        older="hoodie.cleaner.policy",
    )
    commits: int = setting(
        "hoodie.clean.commits.retained",
        10,
        "Commits that stay readable, with KEEP_LATEST_COMMITS.",
        least=1,
        older="hoodie.cleaner.commits.retained",
    )
    hours: int = setting(
        "hoodie.clean.hours.retained",
        24,
        "Hours back that stay readable, with KEEP_LATEST_BY_HOURS.",
        least=1,
        older="hoodie.cleaner.hours.retained",
    )
    versions: int = setting(
        "hoodie.clean.fileversions.retained",
        3,
        "Versions that each file group keeps, with KEEP_LATEST_FILE_VERSIONS.",
        least=1,
        older="hoodie.cleaner.fileversions.retained",
    )
    incremental: bool = setting(
        "hoodie.clean.incremental.enabled",
        True,
        "Look only into partitions that were touched since the last clean.",
        older="hoodie.cleaner.incremental.mode",
    )
    is_automatic: bool = setting(AUTOMATIC_CLEAN, True, "Clean after each commit, where cleans run inline.")
    is_async: bool = setting(
        "hoodie.clean.async.enabled",
        False,
        "Such cleans run in the background instead of after the writes.",
        older="hoodie.clean.async",
    )
    trigger_commits: int = setting(
        "hoodie.clean.trigger.max.commits",
        1,
        "Commits since the last clean that make the next one due.",
        least=1,
        older="hoodie.clean.max.commits",
    )
    parallelism: int = setting(
        "hoodie.clean.parallelism",
        200,
        "How many deletions and listings of a clean run at the same time.",
        least=1,
        older="hoodie.cleaner.parallelism",
    )
    most_commits: int | None = setting(
        "hoodie.clean.max.commits.to.clean",
        None,
        "Most commits that one clean leaves behind the retained ones; without a bound by default.",
        takes=int,
        least=1,
    )
    empty_interval_hours: int = setting(
        "hoodie.write.empty.clean.interval.hours",
        -1,
        "Hours after which a clean is recorded even if it finds nothing; -1 is never.",
        least=-1,
    )

    besides: ClassVar[tuple[Setting, ...]] = (_STRATEGY,)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        strategy = _STRATEGY.read(options).upper()
        if strategy != _NUM_COMMITS:
            raise UnsupportedFeatureError(f"{_STRATEGY.name}: {strategy} is not supported. Use {_NUM_COMMITS}.")
        values = cls.read(options)
        if cls.setting_of("policy").given(options) is None:
            by_amount = [policy for name, policy in _AMOUNTS.items() if cls.setting_of(name).given(options)]
            values["policy"] = by_amount[0] if len(by_amount) == 1 else CleanPolicy.COMMITS
        return cls(**values)

    @property
    def kept(self) -> str:
        """What is kept, in words."""
        amounts = {
            CleanPolicy.COMMITS: f"the latest {self.commits} commits",
            CleanPolicy.HOURS: f"the commits of the last {self.hours} hours",
            CleanPolicy.VERSIONS: f"the latest {self.versions} versions of each file group",
        }
        return amounts[self.policy]
