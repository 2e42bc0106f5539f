"""Errors of object stores as `StorageError`s that say what to do, and whether trying again may help.

The client library has no fields for status codes, so they are read from its messages. A message that is not
understood is not transient: the caller then sees it at once, instead of after many vain tries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions as obs

from tablekeeper.errors import InvalidRequestError, NotFoundError, StorageError

__all__ = ["is_conflict_in_flight", "object_fault", "translated"]

_STATUS = re.compile(r"status code: (\d{3})")
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_METADATA_SERVICES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
_NETWORK = (
    "error sending request",
    "error decoding response body",
    "error following redirect",
    "timed out",
    "kind: Timeout",
)
_IN_FLIGHT = ("ConditionalRequestConflict", "OperationAborted")


@contextmanager
def translated(*, action: str, location: str) -> Iterator[None]:
    """Turn what the client library raises during `action` on `location` into this package's errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(location) from error
    except ValueError as error:
        raise InvalidRequestError(f"{location}: {_headline(error)}. Use a name that object stores allow.") from error
    except (obs.BaseError, OSError) as error:
        raise object_fault(error, action=action, location=location) from error


def object_fault(error: Exception, *, action: str, location: str) -> StorageError:
    """The `StorageError` for an error that is neither "not there" nor a refused precondition."""
    text = str(error)
    step, transient = _diagnosis(error, text)
    return StorageError(f"{location}: cannot {action}: {step}.", path=location, transient=transient)


def is_conflict_in_flight(error: Exception) -> bool:
    """Whether a conditional write was refused only because another one on the same key was being decided."""
    return any(code in str(error) for code in _IN_FLIGHT)


def _diagnosis(error: Exception, text: str) -> tuple[str, bool]:
    """What to do next, and whether the fault may pass by itself."""
    found = _STATUS.search(text)
    status = int(found.group(1)) if found else 0
    setup = _setup_fault(error, text, status=status)
    if setup is not None:
        return setup, False
    if status in _TRANSIENT_STATUSES or is_conflict_in_flight(error):
        return f"the store answered {status} each time. Try again later, or slow down", True
    if status == 0 and (any(sign in text for sign in _NETWORK) or isinstance(error, TimeoutError)):
        return "the store cannot be reached. Check endpoint and network, and try again", True
    return f"{_headline(error)}. Check path, region and storage options", False


def _setup_fault(error: Exception, text: str, *, status: int) -> str | None:
    """What to do about a fault that lies in how the store was named or entered."""
    if any(service in text for service in _METADATA_SERVICES):
        return "no credentials were found. Pass them as storage options or set the store's environment variables"
    if isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError) or status in {401, 403}:
        return "access denied. Check the credentials and the permissions on this bucket and path"
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return "the bucket does not exist. Check its name, region and endpoint"
    if "builder error" in text:
        return "the endpoint is not https. Add the storage option allow_http=true if that is meant"
    return None


def _headline(error: Exception) -> str:
    """The first line of a message, without the client's dump of its inner state."""
    return str(error).split("\n", 1)[0][:300].rstrip(". ")
