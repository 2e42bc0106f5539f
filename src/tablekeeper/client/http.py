"""JSON over HTTP to a running Table Management Service, with nothing but the standard library.

Several addresses may be given: they are instances of one service, and the next one is asked where one does not answer.
An answer that refuses is final; only silence is tried again.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from tablekeeper.errors import InvalidRequestError, TablekeeperError

__all__ = ["ServiceClient", "ServiceRefusedError", "ServiceUnreachableError", "path_of"]

# The output of attempts and metrics are text, everything else is JSON.
_TEXTS = ("/log", "/metrics")
_MOST_BYTES = 64 << 20
_KNOWN_STATUSES = frozenset(HTTPStatus)
# This instance, or what stands before it, is not up: another one may be.
_ELSEWHERE = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


class ServiceUnreachableError(TablekeeperError):
    """No instance of the service answered in time: try again, or see whether it runs."""


class ServiceRefusedError(TablekeeperError):
    """The service answered and said no; `code` is stable and says why."""

    def __init__(self, message: str, *, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def path_of(*parts: str | int) -> str:
    """A path of the service out of names that may hold any character that UTF-8 has."""
    with _sayable(*parts):
        return "/" + "/".join(quote(str(part), safe="") for part in parts)


@contextmanager
def _sayable(*parts: object) -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{list(parts)!a} holds a character that no name has: half of a pair") from error


_TRUST_HINT = "The variable SSL_CERT_FILE can name a file with the certificates to trust."


class ServiceClient:
    """Calls a service at one of `addresses`. `token` is sent as a bearer token and never shown."""

    def __init__(self, addresses: Sequence[str], *, token: str = "", timeout_s: float = 10.0, rounds: int = 1) -> None:
        self._addresses = [_checked_address(address) for address in addresses]
        if not self._addresses:
            raise InvalidRequestError("the address of the service is missing, for example http://localhost:9091")
        if not token.isascii() or not token.isprintable():
            raise InvalidRequestError("the token of the service holds characters that no token has")
        self._token = token
        self._timeout_s = timeout_s
        self._rounds = max(1, rounds)
        # A redirect would carry the token elsewhere.
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=ssl.create_default_context()))

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """The JSON (or text) at this path."""
        wanted = {name: value for name, value in (query or {}).items() if value is not None and value != ""}
        with _sayable(*wanted.values()):
            asked = f"{path}?{urlencode(wanted)}" if wanted else path
        return self._call("GET", asked, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to this body."""
        return self._call("POST", path, dict(body or {}))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to this body."""
        return self._call("PUT", path, dict(body))

    def delete(self, path: str) -> Any:
        """The answer to the deletion."""
        return self._call("DELETE", path, None)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        silent: list[str] = []
        for _ in range(self._rounds):
            for address in self._addresses:
                try:
                    return self._ask(address, method, path, body)
                except _SilentError as error:
                    silent.append(f"{address}: {error}")
        told = "; ".join(dict.fromkeys(silent))
        hint = _TRUST_HINT if "CERTIFICATE_VERIFY_FAILED" in told else "Is it running? `tablekeeper serve` starts one."
        raise ServiceUnreachableError(f"the service did not answer ({told}). {hint}")

    def _ask(self, address: str, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = Request(address + path, data=data, headers=headers, method=method)  # noqa: S310 (checked scheme)
        try:
            status, content, content_type = self._exchange(request)
        except (URLError, OSError, http.client.HTTPException) as error:
            said = str(getattr(error, "reason", error) or type(error).__name__)
            # What is no HTTP is quoted as it came.
            raise _SilentError(said if said.isprintable() else ascii(said)) from error
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise _refused(status, content)
        return _decoded(content, content_type, is_text=urlsplit(path).path.endswith(_TEXTS))

    def _exchange(self, request: Request) -> tuple[int, bytes, str]:
        """Status, body and type of the answer, whatever the status; the body may end too early, or never come."""
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return answer.status, answer.read(_MOST_BYTES), answer.headers.get_content_type()
        except HTTPError as error:
            with error:
                return error.code, error.read(_MOST_BYTES), error.headers.get_content_type()


class _SilentError(Exception):
    """One address did not answer."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _checked_address(address: str) -> str:
    parts = urlsplit(address.strip())
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidRequestError(f"{address!r} is not the address of a service: write it as http://localhost:9091")
    return address.strip().rstrip("/")


def _decoded(data: bytes, content_type: str, *, is_text: bool) -> Any:
    if is_text and content_type == "text/plain":
        return data.decode("utf-8", "replace")
    try:
        answer = json.loads(data) if content_type == "application/json" else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ServiceRefusedError(
            "the answer is not JSON of a service: is this the address of a tablekeeper service?",
            code="not_json",
            status=200,
        )
    return answer


def _refused(status: int, content: bytes) -> ServiceRefusedError | _SilentError:
    try:
        said = json.loads(content)["error"]
        code, message = str(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        known = HTTPStatus(status).phrase if status in _KNOWN_STATUSES else ""
        code, message = "unknown", f"the service answered {status} {known}".rstrip()
    if status in _ELSEWHERE:
        return _SilentError(message)
    if code == "unauthenticated":
        message = f"{message}. The token is taken from the variable TABLEKEEPER_TOKEN."
    return ServiceRefusedError(message, code=code, status=status)
