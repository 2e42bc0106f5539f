"""Values: Hudi's nouns as frozen dataclasses, without I/O."""

from tablekeeper.model.commits import SCHEMA_KEY, CommitMetadata, WriteStat
from tablekeeper.model.files import BaseFile, FileGroupId, FileSlice, LogFile, join_path
from tablekeeper.model.instants import Action, CompletionTime, Instant, Operation, RequestedTime, ServiceKind, State
from tablekeeper.model.plans import Plan, PlanFlags, PlanOutline, Strategy, Work

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
    "Plan",
    "PlanFlags",
    "PlanOutline",
    "RequestedTime",
    "ServiceKind",
    "State",
    "Strategy",
    "Work",
    "WriteStat",
    "join_path",
]
