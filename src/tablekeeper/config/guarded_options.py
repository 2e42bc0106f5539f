"""Settings that a request to the service must not choose: they call other servers, or weaken the locks of a table."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["guarded_options"]

_GUARDED = (
    "hoodie.write.lock.",
    "hoodie.write.concurrency.",
    "hoodie.client.heartbeat.",
    "hoodie.cleaner.policy.failed.",
)


def guarded_options(options: Mapping[str, object]) -> list[str]:
    """Those of them that are among these settings, by name."""
    return sorted(name for name in options if name.startswith(_GUARDED))
