"""Values: Hudi's nouns as frozen dataclasses, without I/O."""

from tablekeeper.model.actions import Action, Operation, ServiceKind
from tablekeeper.model.commits import SCHEMA_KEY, CommitMetadata, WriteStat
from tablekeeper.model.files import BaseFile, FileGroupId, FileSlice, LogFile, join_path
from tablekeeper.model.instants import CompletionTime, Instant, RequestedTime, State

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
    "ServiceKind",
    "State",
    "WriteStat",
    "join_path",
]
