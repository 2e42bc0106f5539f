"""Checks on the text of tracked files: no paths of one machine, no package registries, one word for one thing.

The forbidden words are put together from pieces, so that this file passes its own checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.tidy.sources import Violation

_HOME_FOLDERS = "|".join(("home", "mnt", "opt", "root", "tmp", "Users", "work"))
_MACHINE_PATH = re.compile(rf"(?:^|[\s\"'`=(\[,]|file:/{{2}})/(?:{_HOME_FOLDERS})/[\w.$-]")

_HOSTS = (
    r"py" + r"pi\.org",
    r"python" + r"hosted\.org",
    r"repo1?\.maven\." + r"(?:org|apache\.org)",
    r"maven" + r"\.google\.com",
    r"registry\." + r"npm" + r"js\.org",
    r"docker" + r"\.io",
    r"ghcr" + r"\.io",
    r"arti" + r"factory",
    r"--(?:extra-)?index" + r"-url\s",
)
_REGISTRY = re.compile("|".join(_HOSTS), re.IGNORECASE)
_URL = re.compile(r"https?://([\w.-]+)")


def machine_paths(path: str, text: str) -> Iterator[Violation]:
    """Absolute paths that exist on somebody's machine only."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _MACHINE_PATH.search(line):
            yield Violation(path, number, f"names a path of one machine: {found.group().strip()}")


def registry_hosts(path: str, text: str) -> Iterator[Violation]:
    """Package registries: an installation takes the one that its machine is configured for."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _REGISTRY.search(line):
            yield Violation(path, number, f"names a package registry: {found.group()}")


def lock_urls(path: str, text: str) -> Iterator[Violation]:
    """A lock file holds names, versions and hashes, and no address at all."""
    if path.endswith(".lock"):
        for number, line in enumerate(text.splitlines(), start=1):
            if found := _URL.search(line):
                yield Violation(path, number, f"a lock file with the address of {found.group(1)}")


# Words that another one stands for -> that one. Put together like the rest.
_OTHER_WORDS = {
    "ri" + r"vals?": "concurrent commits, others",
    "un" + "seen": "phantom",
    r"\w*_?pat" + r"ience(?:_s)?": "timeout",
    "up" + "keep": "compaction, clean, archive",
    r"call(?:s|ed|ing)?\s+" + "off": "cancel",
    r"carr(?:y|ies|ied|ying)\s+" + "out": "execute",
    r"seeds?[\s-]" + r"0\d\d": "the name of the document",
}
_OTHER_WORD = {re.compile(rf"(?<![\w-]){word}(?![\w-])", re.IGNORECASE): say for word, say in _OTHER_WORDS.items()}
_WORDED = (".py", ".md", ".html", ".toml")


def other_words(path: str, text: str) -> Iterator[Violation]:
    """One word for one thing, in what people read: code, pages, messages."""
    if path.endswith(_WORDED):
        for pattern, say in _OTHER_WORD.items():
            for found in pattern.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield Violation(path, line, f"says {found.group()!r}, where we say: {say}")
