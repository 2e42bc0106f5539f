"""Why a call is refused, as stable codes that programs can rely on, and how each looks on the wire.

A code never changes its meaning and its HTTP status. The text beside it is for people and may change.
"""

from __future__ import annotations

import enum
from http import HTTPStatus

from tablekeeper.errors import (
    ConflictError,
    CorruptTableError,
    InvalidRequestError,
    StorageError,
    TablekeeperError,
    UnsupportedFeatureError,
)
from tablekeeper.server.model import ForbiddenTransitionError
from tablekeeper.server.places import ForbiddenPlaceError
from tablekeeper.server.store.protocol import LeaseLostError, UnknownRecordError

__all__ = ["Refusal", "RefusedCallError", "database_is_away", "refusal_of"]


class Refusal(enum.Enum):
    """The code, and the HTTP status that goes with it."""

    INVALID_REQUEST = ("invalid_request", HTTPStatus.BAD_REQUEST)
    INVALID_INSTANT = ("invalid_instant", HTTPStatus.BAD_REQUEST)
    WRONG_ACTION = ("wrong_action", HTTPStatus.BAD_REQUEST)
    UNFIT_SERVICE = ("unfit_service", HTTPStatus.BAD_REQUEST)
    UNAUTHENTICATED = ("unauthenticated", HTTPStatus.UNAUTHORIZED)
    FORBIDDEN = ("forbidden", HTTPStatus.FORBIDDEN)
    FORBIDDEN_PLACE = ("forbidden_place", HTTPStatus.FORBIDDEN)
    CROSS_SITE = ("cross_site", HTTPStatus.FORBIDDEN)
    TABLE_NOT_FOUND = ("table_not_found", HTTPStatus.NOT_FOUND)
    OPERATION_NOT_FOUND = ("operation_not_found", HTTPStatus.NOT_FOUND)
    PLAN_NOT_FOUND = ("plan_not_found", HTTPStatus.NOT_FOUND)
    NOT_FOUND = ("not_found", HTTPStatus.NOT_FOUND)
    WRONG_METHOD = ("wrong_method", HTTPStatus.METHOD_NOT_ALLOWED)
    WRONG_STATE = ("wrong_state", HTTPStatus.CONFLICT)
    TOO_SLOW = ("too_slow", HTTPStatus.REQUEST_TIMEOUT)
    BODY_TOO_LARGE = ("body_too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    ADDRESS_TOO_LONG = ("address_too_long", HTTPStatus.REQUEST_URI_TOO_LONG)
    TABLE_UNREADABLE = ("table_unreadable", HTTPStatus.UNPROCESSABLE_ENTITY)
    TOO_MANY_REQUESTS = ("too_many_requests", HTTPStatus.TOO_MANY_REQUESTS)
    INTERNAL = ("internal", HTTPStatus.INTERNAL_SERVER_ERROR)
    UNAVAILABLE = ("unavailable", HTTPStatus.SERVICE_UNAVAILABLE)

    def __init__(self, code: str, status: HTTPStatus) -> None:
        self.code = code
        self.status = status


class RefusedCallError(TablekeeperError):
    """A call that is refused for one of the reasons above. Nothing was stored."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


def database_is_away() -> RefusedCallError:
    """For one of `DATABASE_AWAY`, whose text names hosts and users: callers are not told it, the log is."""
    text = "the database of the service cannot be reached at the moment: try again, or another instance"
    return RefusedCallError(Refusal.UNAVAILABLE, text)


_BY_KIND: tuple[tuple[type[TablekeeperError], Refusal], ...] = (
    (ForbiddenPlaceError, Refusal.FORBIDDEN_PLACE),
    (ForbiddenTransitionError, Refusal.WRONG_STATE),
    (LeaseLostError, Refusal.WRONG_STATE),
    (UnknownRecordError, Refusal.NOT_FOUND),
    (InvalidRequestError, Refusal.INVALID_REQUEST),
    (ConflictError, Refusal.WRONG_STATE),
    (CorruptTableError, Refusal.TABLE_UNREADABLE),
    (UnsupportedFeatureError, Refusal.TABLE_UNREADABLE),
    (StorageError, Refusal.TABLE_UNREADABLE),
)


def refusal_of(error: TablekeeperError) -> Refusal:
    """The refusal that fits one of our errors; `INTERNAL` for one that no caller is to blame for."""
    if isinstance(error, RefusedCallError):
        return error.refusal
    return next((refusal for kind, refusal in _BY_KIND if isinstance(error, kind)), Refusal.INTERNAL)
