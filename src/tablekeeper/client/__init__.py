"""The client of the Table Management Service: for writers that hand their services over, and for commands."""

from __future__ import annotations

from tablekeeper.client.http import ServiceClient, ServiceRefusedError, ServiceUnreachableError

__all__ = ["ServiceClient", "ServiceRefusedError", "ServiceUnreachableError"]
