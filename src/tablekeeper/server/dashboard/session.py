"""Who looks at a page: a token in a cookie that scripts cannot read, and a second one against forged forms.

The session cookie holds the caller's own token, so that revoking the token ends the session on every instance. It is
sent when a link in a message about an alarm is followed (`SameSite=Lax`), and with nothing else that another site makes
a browser send. Every form carries the value of the `tk_form` cookie, which another site does not know.
"""

from __future__ import annotations

import hmac

from fastapi import Request, Response

from tablekeeper.runtime import Ids
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.api.refusals import Refusal, RefusedCallError
from tablekeeper.server.api.rest import RestCalls

__all__ = ["FORM_COOKIE", "check_form", "forget_session", "form_token", "page_caller", "remember_session"]

SESSION_COOKIE = "tk_session"
FORM_COOKIE = "tk_form"
_DAY_S = 24 * 3600


def page_caller(request: Request) -> Caller:
    """The caller of a page; `unauthenticated` where a token is wanted and there is none."""
    calls: RestCalls = request.app.state.calls
    secret = request.cookies.get(SESSION_COOKIE, "")
    client = request.client.host if request.client is not None else None
    return calls.gate.admit(authorization=f"Bearer {secret}" if secret else None, client_host=client)


def form_token(request: Request, ids: Ids) -> str:
    """The value that forms of this browser carry."""
    return request.cookies.get(FORM_COOKIE, "") or f"{ids.number(1 << 128):032x}"


def check_form(request: Request, given: str) -> None:
    """Refuse a form that was not rendered by this service for this browser."""
    expected = request.cookies.get(FORM_COOKIE, "")
    if not expected or not hmac.compare_digest(expected.encode(), given.encode()):
        raise RefusedCallError(Refusal.CROSS_SITE, "this form is out of date: reload the page and send it again")


def remember_session(response: Response, secret: str, *, is_secure: bool) -> None:
    """Log in."""
    response.set_cookie(
        SESSION_COOKIE, secret, max_age=_DAY_S, httponly=True, samesite="lax", secure=is_secure, path="/"
    )


def forget_session(response: Response) -> None:
    """Log out."""
    response.delete_cookie(SESSION_COOKIE, path="/")
