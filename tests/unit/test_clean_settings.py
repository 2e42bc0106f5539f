"""Settings of the clean: Java's keys, old and new, and what they imply."""

from __future__ import annotations

import pytest

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__: list[str] = []


def settings(**options: str) -> CleanSettings:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return CleanSettings.from_options(Options({f"hoodie.{name}": value for name, value in given.items()}).given)


def test_without_options_the_defaults_are_those_of_java() -> None:
    assert settings() == CleanSettings(CleanPolicy.COMMITS, 10, 24, 3, incremental=True, trigger_commits=1)
    defaults = {each.name: each.default_text for each in CleanSettings.all_settings()}
    assert defaults["hoodie.clean.automatic"] == "true"
    assert defaults["hoodie.clean.async.enabled"] == "false"
    assert defaults["hoodie.clean.parallelism"] == "200"


def test_an_amount_alone_says_the_policy() -> None:
    assert settings(clean__hours__retained="5").policy is CleanPolicy.HOURS
    assert settings(cleaner__fileversions__retained="2").policy is CleanPolicy.VERSIONS
    assert settings(clean__commits__retained="2").policy is CleanPolicy.COMMITS
    assert settings(clean__hours__retained="5", clean__commits__retained="2").policy is CleanPolicy.COMMITS
    assert settings(cleaner__policy="KEEP_LATEST_BY_HOURS", clean__commits__retained="2").policy is CleanPolicy.HOURS


def test_older_names_count_and_newer_ones_come_first() -> None:
    assert settings(cleaner__commits__retained="4").commits == 4
    assert settings(cleaner__commits__retained="4", clean__commits__retained="6").commits == 6
    assert settings(clean__max__commits="7").trigger_commits == 7
    assert not settings(cleaner__incremental__mode="false").incremental
    assert settings(cleaner__parallelism="9").parallelism == 9
    assert settings(clean__async="true").is_async


def test_wrong_values_are_refused_with_the_key() -> None:
    with pytest.raises(InvalidRequestError, match=r"commits\.retained: 0 is too small"):
        settings(clean__commits__retained="0")
    with pytest.raises(InvalidRequestError, match=r"clean\.policy: 'KEEP_ALL' is not known"):
        settings(clean__policy="KEEP_ALL")
    with pytest.raises(UnsupportedFeatureError, match=r"clean\.trigger\.strategy"):
        settings(clean__trigger__strategy="SOMETIMES")
    with pytest.raises(InvalidRequestError, match="not a valid int"):
        settings(clean__hours__retained="soon")


def test_what_is_kept_is_said_in_words() -> None:
    assert CleanSettings(commits=4).kept == "the latest 4 commits"
    assert "5 hours" in CleanSettings(policy=CleanPolicy.HOURS, hours=5).kept
    assert "2 versions" in CleanSettings(policy=CleanPolicy.VERSIONS, versions=2).kept
