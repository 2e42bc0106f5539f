"""Places that may break a tidy rule, each with its reason. Keep it short: a stale entry fails the tests.

Key: rule name and path, for functions with `::name`. Value: why the rule does not fit there.
"""

from __future__ import annotations

MAX_EXCEPTIONS = 8

EXCEPTIONS: dict[tuple[str, str], str] = {}
