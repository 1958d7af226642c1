"""Who may see the pages and act by them: the one who started the inspector, from this computer, by its own pages.

Rule 1: every request shows the token, in the cookie that the first URL sets or as a bearer: else it is told nothing.
Rule 2: the Host is this server on loopback, whatever a name resolves to: a page of another site that points its own
name here (DNS rebinding) is refused.
Rule 3: what changes something is a POST that comes from a page of this very server, or shows the token as a bearer,
which no browser sends by itself.
Rule 4: a page loads nothing from elsewhere, runs no script but files of the inspector, and is framed by nobody.
"""

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What every answer says, refusals too."""

MAX_BODY = 1_000_000
"""Bytes that a form may have."""

TOKEN = "token"  # noqa: S105  # the name of the parameter


class Guard:
    """Lets requests pass to ``app`` that may, and answers the others itself."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"agent_es_{port}"  # cookies are shared by all ports of a host
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_marked)

    def _refusal(self, scope: Scope) -> Response | None:  # noqa: PLR0911  # one answer per reason
        """Return what is answered in place of a page; None where the request may pass."""
        if scope["type"] != "http":
            return _refused(400, "only HTTP is spoken here")
        headers = Headers(scope=scope)
        if headers.get("host") not in self._hosts:
            return _refused(421, "the Host is not this inspector on loopback; open the URL that it printed")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        is_read = scope["method"] in ("GET", "HEAD")
        if is_read and self._is_token(query.get(TOKEN)):
            return self._admitted(scope["path"], query)
        is_bearer = self._is_token(headers.get("authorization", "").removeprefix("Bearer "))
        if not (is_bearer or self._is_token(_cookies(headers).get(self._cookie))):
            return _refused(
                401, "the token is missing or wrong; open the URL that the inspector printed when it began"
            )
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _refused(405, "pages are read by GET and act by POST")
        own = f"http://{headers['host']}"
        if not is_bearer and headers.get("origin", own if is_read else None) != own:
            return _refused(403, "the request comes from another site; nothing was done")
        if is_read:
            return None
        if not headers.get("content-length", "").isdecimal() or int(headers["content-length"]) > MAX_BODY:
            return _refused(413, f"a form has at most {MAX_BODY:,} bytes; nothing was done")
        return None

    def _admitted(self, path: str, query: Mapping[str, str]) -> Response:
        """Set the cookie, and go on without the token in the URL: history and logs do not keep it."""
        rest = urlencode({name: value for name, value in query.items() if name != TOKEN})
        there = "/" + path.lstrip("/")  # what begins with two slashes is another host
        response = RedirectResponse(f"{there}?{rest}" if rest else there, 303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return response

    def _is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}
