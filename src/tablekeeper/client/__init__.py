"""The client of the Table Management Service: for writers that hand their services over, and for commands."""

from __future__ import annotations

from tablekeeper.client.handover import Handover, HandoverTable, hand_over
from tablekeeper.client.http import ServiceClient, ServiceRefusedError, ServiceUnreachableError

__all__ = [
    "Handover",
    "HandoverTable",
    "ServiceClient",
    "ServiceRefusedError",
    "ServiceUnreachableError",
    "hand_over",
]
