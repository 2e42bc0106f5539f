"""No tracked file speaks of one machine or of a package registry, and each says one word for one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.tidy import files
from tests.tidy.sources import ROOT, Violation, load_tracked_texts

Check = Callable[[str, str], Iterator[Violation]]
CHECKS: tuple[Check, ...] = (files.machine_paths, files.registry_hosts, files.lock_urls, files.other_words)
TEXTS = list(load_tracked_texts())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_tracked_files_pass(check: Check) -> None:
    found = [violation for path, text in TEXTS for violation in check(path, text)]
    assert not found, "\n" + "\n".join(map(str, found))


def test_the_lock_files_are_among_the_files_checked() -> None:
    assert {"requirements/dev.lock", "requirements/interop.lock"} <= {path for path, _ in TEXTS}


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (files.machine_paths, "cache = '/{}/me/cache'".format("home")),
        (files.machine_paths, "file://" + "/{}/table".format("tmp")),
        (files.machine_paths, "see /{}/main".format("work")),
        (files.registry_hosts, "https://{}.org/simple".format("pypi")),
        (files.registry_hosts, "--index{} x".format("-url")),
        (files.registry_hosts, "repo.maven.{}.org".format("apache")),
        (files.lock_urls, "attrs @ https://example.invalid/attrs.whl"),
    ],
)
def test_a_bad_line_is_caught(check: Check, line: str) -> None:
    assert [violation.line for violation in check("requirements/x.lock", "fine\n" + line + "\n")] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "class Ri{}: ...".format("vals"),
        "the un{} rows".format("seen"),
        "self._pat{} = 3".format("ience"),
        "_PAT{} = 3".format("IENCE_S"),
        "_REAL_PAT{} = 3".format("IENCE_S"),
        "the up{} of a table".format("keep"),
        "it is {} off".format("called"),
        "he {} out the plan".format("carries"),
        "see seed {}".format("004"),
    ],
)
def test_another_word_is_caught(line: str) -> None:
    assert [violation.line for violation in files.other_words("src/a.py", "fine\n" + line + "\n")] == [2]


def test_another_word_over_two_lines_is_caught_and_parts_of_words_are_not() -> None:
    assert len(list(files.other_words("docs/a.md", "a plan may be {}\noff".format("called")))) == 1
    assert list(files.other_words("docs/a.md", "arrivals, call offers, 0004, seed 4, recall official")) == []


@pytest.mark.parametrize(
    "line", ["s3://lake/trips", "a/work/b", "file:///lake/trips", "the home/work balance", "/lake/trips"]
)
def test_an_ordinary_path_passes(line: str) -> None:
    assert list(files.machine_paths("docs/a.md", line)) == []


@pytest.mark.parametrize("lock", ["dev.lock", "interop.lock"])
def test_every_locked_package_is_pinned_and_hashed(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(requirements) > 50
    assert all("==" in line and line.endswith("\\") for line in requirements)
    assert any(line.startswith("hatchling==") for line in requirements), "the project itself is built without network"
