"""Bodies of REST requests, with the field names of RFC-43 and of Hudi's commit callback. Unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tablekeeper.server.api.administration import Registration
from tablekeeper.server.api.refusals import Refusal
from tablekeeper.server.api.writers import SubmitRequest

__all__ = [
    "EVENTS_EXAMPLE",
    "POLICY_EXAMPLES",
    "CancelBody",
    "CommitCallbackBody",
    "RefusalBody",
    "RemoveBody",
    "SubmitBody",
    "TableBody",
    "TokenBody",
]

POLICY_EXAMPLES = Body(
    examples=[
        {"compact_after_commits": 3, "clean_after_commits": 10, "keep_commits": 20},
        {"services": ["compaction", "clustering", "clean"], "order_by": ["ts"], "windows": ["22:00-06:00"]},
        {"fresh_within_s": 300, "max_log_files": 20, "max_read_amplification": 3.0},
    ]
)
EVENTS_EXAMPLE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "application/json": {
                "example": {
                    "events": [
                        {
                            "event_id": 7,
                            "at_ms": 1_795_000_000_000,
                            "kind": "failed",
                            "text": "the table has no base file for a log file",
                            "table": "sales.trips",
                            "operation_id": 42,
                            "instance": "keeper-1-4711",
                        }
                    ],
                    "next": None,
                }
            }
        }
    }
}
Text = Annotated[str, Field(max_length=2000)]
# Many clients write null for a field that was not set.
OptionalText = Annotated[str | None, Field(max_length=2000)]


def _as_text(value: object) -> object:
    """Numbers as RFC-43 has them, and what a client did not set."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_list(value: object) -> object:
    """The column of RFC-43 is a text: names with commas between them."""
    if value is None:
        return []
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NumberText = Annotated[str, Field(max_length=2000), BeforeValidator(_as_text, json_schema_input_type=str | int | None)]


class RemoveBody(BaseModel):
    """Plans that a client has taken back."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"db_name": "sales", "table_name": "trips", "instant": "20261115213746589"}}
    )
    db_name: OptionalText = ""
    table_name: Text
    instant: Annotated[str, Field(max_length=20_000)]

    def request(self) -> SubmitRequest:
        return SubmitRequest(self.table_name, db_name=self.db_name or "", instant=self.instant)


class SubmitBody(RemoveBody):
    """Plans to execute."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "db_name": "sales",
                "table_name": "trips",
                "owner": "default",
                "queue": "root.default",
                "instant": "20261115213746589",
                "resource": "4g:4g",
                "parallelism": "100",
                "execution_engine": "Spark",
                "extra_params": "",
            }
        }
    )
    owner: OptionalText = ""
    queue: OptionalText = ""
    resource: OptionalText = ""
    parallelism: NumberText = ""
    execution_engine: OptionalText = ""
    extra_params: Annotated[str | None, Field(max_length=20_000)] = ""

    def request(self) -> SubmitRequest:
        return SubmitRequest(
            self.table_name,
            db_name=self.db_name or "",
            instant=self.instant,
            owner=self.owner or "",
            queue=self.queue or "",
            resource=self.resource or "",
            parallelism=self.parallelism,
            execution_engine=self.execution_engine or "",
            extra_params=self.extra_params or "",
        )


class CommitCallbackBody(BaseModel):
    """What Hudi's writers post after each commit. Only the table is of interest here."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "commitTime": "20261115213746589",
                "tableName": "trips",
                "basePath": "/lake/trips",
                "hoodieWriteStat": [],
            }
        }
    )
    tableName: OptionalText = ""  # noqa: N815 (Hudi's name)
    basePath: Text  # noqa: N815 (Hudi's name)


class TableBody(BaseModel):
    """A table to be registered, or changed."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "db_name": "sales",
                "table_name": "trips",
                "base_path": "/lake/trips",
                "owner": "ann",
                "queue": "nightly",
                "priority": "high",
                "action_types": ["compaction", "clean"],
                "policy": {"compact_after_commits": 5, "windows": ["22:00-06:00"]},
            }
        }
    )
    base_path: Text
    table_name: OptionalText = ""
    db_name: OptionalText = ""
    owner: OptionalText = ""
    queue: OptionalText = ""
    priority: NumberText = ""
    action_types: Annotated[
        list[Text], Field(max_length=10), BeforeValidator(_as_list, json_schema_input_type=list[str] | str | None)
    ] = []
    policy: dict[str, Any] | None = None

    def registration(self) -> Registration:
        return Registration(
            self.base_path,
            self.table_name or "",
            self.db_name or "",
            self.owner or "",
            self.queue or "",
            self.priority,
            self.action_types,
            self.policy,
        )


class RefusalText(BaseModel):
    """`code` never changes its meaning; `message` is for people."""

    code: Annotated[str, Field(json_schema_extra={"enum": [each.code for each in Refusal]})]
    message: str


class RefusalBody(BaseModel):
    """Why a call was refused."""

    error: RefusalText


class CancelBody(BaseModel):
    """Why an operation is cancelled."""

    reason: Text = ""


class TokenBody(BaseModel):
    """A token to be made. Empty limits mean: everywhere."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"name": "ingest", "role": "writer", "databases": ["sales"]}}
    )
    name: Text
    role: Text = "viewer"
    databases: Annotated[list[Text], Field(max_length=100)] = []
    path_prefixes: Annotated[list[Text], Field(max_length=100)] = []
