"""Who calls, and what they may do.

A caller is known by a bearer token, of which the database keeps a digest. As long as there is no token at all, whoever
sits on the same machine may do everything, and nobody else anything. A token has a role and can be limited to databases
and to path prefixes; both limits hold for looking as well as for changing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Clock, Ids
from tablekeeper.server.api.refusals import Refusal, RefusedCallError
from tablekeeper.server.model import ManagedTable, Role
from tablekeeper.server.store.protocol import TokenStore

__all__ = [
    "LOCAL_ADMIN",
    "Caller",
    "Gate",
    "callback_authorization",
    "digest_of",
    "is_loopback",
    "new_secret",
    "parse_role",
]

_PREFIX = "tk_"
_SEEN_FOR_S = 2.0


@dataclass(frozen=True, slots=True)
class Caller:
    """The bearer of a token. Empty limits mean: everywhere."""

    name: str
    role: Role
    databases: tuple[str, ...] = ()
    path_prefixes: tuple[str, ...] = ()

    def require(self, role: Role) -> None:
        """`RefusedCallError` unless the caller has this role or a higher one."""
        if self.role < role:
            raise RefusedCallError(
                Refusal.FORBIDDEN,
                f"this needs the role {role.name.lower()}, and the token {self.name!r} has {self.role.name.lower()}",
            )

    @property
    def sees_everything(self) -> bool:
        """Whether no limit applies."""
        return not self.databases and not self.path_prefixes

    def require_everywhere(self, what: str) -> None:
        """`RefusedCallError` for a token with limits: `what` is about the whole lake."""
        if not self.sees_everything:
            raise RefusedCallError(
                Refusal.FORBIDDEN, f"{what} need a token without limits, and the token {self.name!r} has some"
            )

    def may_touch(self, *, db_name: str, base_path: str) -> bool:
        """Whether a table of this database at this canonical path is inside of the limits."""
        is_database = not self.databases or db_name in self.databases
        is_place = not self.path_prefixes or any(
            base_path == prefix or base_path.startswith(f"{prefix.rstrip('/')}/") for prefix in self.path_prefixes
        )
        return is_database and is_place

    def require_table(self, table: ManagedTable) -> None:
        """A table outside of the limits looks as if it were not there."""
        if not self.may_touch(db_name=table.db_name, base_path=table.base_path):
            raise RefusedCallError(Refusal.TABLE_NOT_FOUND, "there is no such table, or it is outside of your token")


LOCAL_ADMIN = Caller("local", Role.ADMIN)
"""Who calls from the same machine while there are no tokens."""


class Gate:
    """Turns what a request carries into a caller."""

    def __init__(self, tokens: TokenStore, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._has_tokens = False
        self._looked_s: float | None = None

    def admit(self, *, authorization: str | None, client_host: str | None) -> Caller:
        """The caller; `RefusedCallError` if there is none that may come in."""
        if authorization:
            return self._bearer(authorization)
        return self._local(client_host, needs_token=self.needs_token())

    def admit_at_once(self, *, authorization: str | None, client_host: str | None) -> Caller | None:
        """The same without a look into the database; None if one is needed."""
        if authorization or self.must_look:
            return None
        return self._local(client_host, needs_token=self._has_tokens)

    def look_again(self) -> None:
        """A token was made just now: nobody is let in by what was known before."""
        self._looked_s = None

    @property
    def must_look(self) -> bool:
        """Whether `needs_token` would ask the database."""
        return not self._has_tokens and (
            self._looked_s is None or self._clock.monotonic_s() - self._looked_s >= _SEEN_FOR_S
        )

    @staticmethod
    def _local(client_host: str | None, *, needs_token: bool) -> Caller:
        if needs_token:
            raise _unauthenticated("this service wants a token: send it as `Authorization: Bearer …`")
        if not is_loopback(client_host or ""):
            raise _unauthenticated("without tokens this service answers only to its own machine; make a token first")
        return LOCAL_ADMIN

    def needs_token(self) -> bool:
        """Whether there is any token. Once there is one it stays so for this process: the last is not revoked away."""
        if self.must_look:
            now_s = self._clock.monotonic_s()
            self._has_tokens = self._tokens.has_tokens()
            self._looked_s = now_s
        return self._has_tokens

    def _bearer(self, authorization: str) -> Caller:
        kind, _, secret = authorization.partition(" ")
        if kind.lower() != "bearer" or not secret.strip():
            raise _unauthenticated("the Authorization header has the form `Bearer TOKEN`")
        token = self._tokens.find_token(digest_of(secret.strip()))
        if token is None:
            raise _unauthenticated("this token is not known, or was revoked")
        return Caller(token.name, token.role, token.databases, token.path_prefixes)


def callback_authorization(key: str | None) -> str | None:
    """What Java's commit callback can be told to send in place of an `Authorization` header: a token as its key.

    Without being told it sends a key of its own, which is no token and says nothing.
    """
    return f"Bearer {key}" if key is not None and key.startswith(_PREFIX) else None


def new_secret(ids: Ids) -> str:
    """A token that nobody can guess. It is shown once; the database gets its digest."""
    return f"{_PREFIX}{ids.number(1 << 256):064x}"


def digest_of(secret: str) -> str:
    """What the database keeps. The secret has 256 random bits, so that a plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def parse_role(text: str) -> Role:
    """viewer, writer, operator or admin."""
    try:
        return Role[text.strip().upper()]
    except KeyError:
        raise InvalidRequestError(f"role {text[:40]!r}: use viewer, writer, operator or admin") from None


@lru_cache(maxsize=1000)
def is_loopback(host: str) -> bool:
    """Whether this address is the own machine's."""
    try:
        return ip_address(host.partition("%")[0].strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _unauthenticated(message: str) -> RefusedCallError:
    return RefusedCallError(Refusal.UNAUTHENTICATED, message)
