"""Names of the files on a table's timeline: which instant, in which state.

Layout 2 (table versions 8 and 9) puts the completion time into the name of a completed file; layout 1
(version 6) has none, and completes in the order in which actions were requested. In both, the inflight
file of a commit is the only one without its action in the name.
"""

from __future__ import annotations

import re

from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State

__all__ = ["decode_instant_name", "encode_instant_name"]

_NAME = re.compile(r"(\d+)(?:_(\d+))?\.([a-z]+)(?:\.([a-z]+))?", re.ASCII)
_ACTIONS = {action.value: action for action in Action}
_PENDING = {State.REQUESTED.value: State.REQUESTED, State.INFLIGHT.value: State.INFLIGHT}


def encode_instant_name(instant: Instant, *, layout: int = 2) -> str:
    """The file name of the instant in its state.

    A completed instant without completion time, legal in a table upgraded from layout 1, has none in its name.
    """
    requested = instant.requested_at.value
    action = instant.action
    if layout == 1 and action is Action.CLUSTERING:
        action = Action.REPLACE_COMMIT
    if instant.state is State.COMPLETED:
        name = action.completed_as.value
        if layout == 1 or instant.completed_at is None:
            return f"{requested}.{name}"
        return f"{requested}_{instant.completed_at.value}.{name}"
    if instant.state is State.INFLIGHT and action is Action.COMMIT:
        return f"{requested}.inflight"
    return f"{requested}.{action.value}.{instant.state.value}"


def decode_instant_name(name: str, *, layout: int = 2) -> Instant | None:
    """The instant that a file name stands for, None if the file is no instant.

    A completed file of layout 2 without completion time gives `completed_at=None`: its time is then the
    file's last change, which only the reader of the directory knows.
    """
    found = _NAME.fullmatch(name)
    if not found:
        return None
    requested, completed, word, state_word = found.groups()
    if word == State.INFLIGHT.value and state_word is None:
        word, state_word = Action.COMMIT.value, State.INFLIGHT.value
    action = _ACTIONS.get(word)
    if action is None or (completed and (layout == 1 or state_word)):
        return None
    if state_word is not None:
        state = _PENDING.get(state_word)
        return Instant(RequestedTime(requested), action, state) if state else None
    if action.is_plan:
        return None
    if layout == 1:
        completed = requested
    return Instant(RequestedTime(requested), action, State.COMPLETED, CompletionTime(completed) if completed else None)
