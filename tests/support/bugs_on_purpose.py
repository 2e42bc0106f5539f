"""Deliberate bugs, one at a time: what the simulator must find. Each is a context in which the code is wrong.

They are in the modules beside; `simulated_bugs.py` looks for seeds that catch them.
"""

from __future__ import annotations

from tests.support import bugs_of_commits, bugs_of_fencing, bugs_of_service
from tests.support.bug_registry import BUGS, Bug

__all__ = ["BUGS", "Bug", "bugs_of_commits", "bugs_of_fencing", "bugs_of_service"]
