"""Values: Hudi's nouns as frozen dataclasses, without I/O."""

from tablekeeper.model.commits import SCHEMA_KEY, CommitMetadata, Operation, WriteStat
from tablekeeper.model.files import BaseFile, FileGroupId, FileSlice, LogFile, join_path
from tablekeeper.model.instants import Action, CompletionTime, Instant, RequestedTime, State

__all__ = [
    "SCHEMA_KEY",
    "Action",
    "BaseFile",
    "CommitMetadata",
    "CompletionTime",
    "FileGroupId",
    "FileSlice",
    "Instant",
    "LogFile",
    "Operation",
    "RequestedTime",
    "State",
    "WriteStat",
    "join_path",
]
