"""Limits and times from a file: read, checked, and refused where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.settings import Limits, Timing
from tablekeeper.server.settings_file import load_settings_file


def written(folder: Path, text: str) -> Path:
    path = folder / "service.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = "[limits]\nslots = 8\nqueue_limits = { nightly = 2 }\n[timing]\nlook_max_s = 900\n"
    limits, timing = load_settings_file(written(tmp_path, text))
    assert limits == Limits(slots=8, queue_limits={"nightly": 2})
    assert timing == Timing(look_max_s=900.0)
    assert isinstance(timing.look_max_s, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nslotz = 8\n", r"slotz is not known\. There is .*slots"),
        ("[more]\n", "more is not known"),
        ("limits = 3\n", r"limits is a table of settings, \[limits\]"),
        ("[limits]\nslots = 1.5\n", "slots is a whole number from 0 on"),
        ("[limits]\nslots = true\n", "slots is a whole number"),
        ("[limits]\nqueue_limits = 3\n", "queue_limits is a table of numbers by name"),
        ("[limits]\nqueue_limits = { a = -1 }\n", r"queue_limits\.a is a whole number from 0 on"),
        ("[timing]\nlease_s = 'long'\n", "lease_s is a number from 0 on"),
        ("[timing\n", "cannot be read as TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load_settings_file(written(tmp_path, text))


def test_a_file_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"none\.toml: cannot be read"):
        load_settings_file(tmp_path / "none.toml")
