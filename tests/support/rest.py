"""Requests to the service that several tests send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

__all__ = ["code_of", "java_query", "register"]


def register(client: TestClient, lake: Path, **more: Any) -> dict[str, Any]:
    """Register the table `trips` of the lake."""
    body = {"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips"), **more}
    answer = client.post("/v1/tables", json=body)
    assert answer.status_code in (200, 201), answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def java_query(lake: Path, **more: str) -> dict[str, str]:
    """What the client that Hudi ships asks."""
    return {
        "execution_engine": "spark",
        "extra_params": "k=v",
        "resource": "spark:4g,4g",
        "basepath": str(lake / "trips"),
        "parallelism": "100",
        "action": "REQUEST",
        "table_name": "trips",
        "queue": "q1",
        "instant": "",
        "username": "alice",
        **more,
    }


def code_of(answer: Any) -> str:
    """The code of a refusal."""
    return str(answer.json()["error"]["code"])
