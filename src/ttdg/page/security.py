"""Protection of the page: Host check, token, CSRF token and headers, as one ASGI middleware."""

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ttdg.page.settings import PageSettings

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SESSION, TOKEN = "ttdg_session", "ttdg_token"
SAFE = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def load_secret(work: Path) -> bytes:
    """Return the secret of a work folder; it outlives the server, so that open pages stay valid."""
    path = work / "secret"
    work.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(handle, "wb") as file:
        file.write(secret := secrets.token_bytes(32))
    return secret


class Guard:
    """Refuses requests that do not come from a page of this server, and adds headers to every answer."""

    def __init__(self, app: Any, settings: PageSettings, secret: bytes) -> None:
        self.app, self.settings, self.secret = app, settings, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cookies, added = _cookies(headers.get("cookie", "")), []
        session = cookies.get(SESSION, "")
        if len(session) < 32:
            session = secrets.token_urlsafe(32)
            added.append(f"{SESSION}={session}; Path=/; HttpOnly; SameSite=Strict")
        scope["csrf"] = self.csrf(session)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
                extra += [(b"set-cookie", cookie.encode()) for cookie in added]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        if not self.settings.allows_host(headers.get("host", "")):
            return await _refuse(guarded, 421, "This server does not go by that name.")
        if self.settings.token and not self._same(cookies.get(TOKEN, "")):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if scope["method"] != "GET" or not self._same(given):
                return await _refuse(
                    guarded, 401, "Open the address with its token, as `ttdg serve` printed it."
                )
            added.append(f"{TOKEN}={given}; Path=/; HttpOnly; SameSite=Strict")
            return await _answer(guarded, 303, b"", [(b"location", b"/")])
        if scope["method"] not in SAFE and (reason := self._foreign(headers, scope["csrf"])):
            return await _refuse(guarded, 403, reason)
        await self.app(scope, receive, guarded)
        return None

    def csrf(self, session: str) -> str:
        """Return the CSRF token of a session."""
        return hmac.new(self.secret, session.encode(), "sha256").hexdigest()

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.settings.token.encode())

    def _foreign(self, headers: dict[str, str], csrf: str) -> str:
        """Return why a change is refused, or an empty text."""
        origin = headers.get("origin", "")
        if origin and urlsplit(origin).netloc != headers["host"]:
            return "This change was asked for by a page of another server."
        if not hmac.compare_digest(headers.get("x-csrf-token", "").encode(), csrf.encode()):
            return "The page is out of date; reload it."
        return ""


def _cookies(header: str) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header).items()}
    except CookieError:
        return {}


async def _refuse(send: Send, status: int, reason: str) -> None:
    await _answer(send, status, f"{reason}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
