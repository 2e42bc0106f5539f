"""Errors travel between processes with their type, message and fields: workers raise what callers must tell apart."""

from __future__ import annotations

import pickle

import pytest

from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    CorruptTableError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    StorageError,
    TablekeeperError,
)


@pytest.mark.parametrize(
    "error",
    [
        TablekeeperError("plain"),
        InvalidRequestError("change the call"),
        CorruptTableError(file="a/b", reason="it is cut off"),
        StorageError("it failed", path="a/b", transient=True),
        NotFoundError("a/b"),
        ConflictError("lost", instant="1", beaten_by="2", file_groups=("p/g",)),
        FencedError("stop"),
        CommitOutcomeUnknownError("maybe", instant="1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_after_a_journey(error: TablekeeperError) -> None:
    error.add_note("seen on a worker")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args, arrived.__dict__) == (str(error), error.args, error.__dict__)
