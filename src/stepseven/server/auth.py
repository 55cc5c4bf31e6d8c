"""Who asks: a bearer token, or the cookie of somebody who signed in."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from stepseven._dataclass import dataclass
from stepseven.layer import Layer
from stepseven.server.problems import Problem
from stepseven.store.base import Tx
from stepseven.transitions import tokens
from stepseven.transitions.tokens import Who

CACHED_S = 5.0  #: for so long a revoked token may still be believed
MOST_CACHED = 10_000
SESSION = "stepseven_session"  #: the cookie of who signed in; no script can read it
FORM = "stepseven_form"  #: the cookie with what every change made in a session has to bring, in ``X-CSRF-Token`` or a field
FORM_HEADER = "x-csrf-token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="stepseven"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Somebody who was recognised, and until when that is believed without looking, by the steady clock."""

    who: Who | None
    until: float


class Auth:
    """Recognises who asks.

    Args:
        layer: where tokens are.
        secure: the server is reached by https: cookies go nowhere else.
    """

    def __init__(self, layer: Layer, *, secure: bool) -> None:
        self.layer = layer
        self.secure = secure
        self._seen: dict[str, Seen] = {}

    async def who(self, request: Request) -> Who:
        """Whoever asks.

        Raises:
            Problem: nobody that is known; or a change in a session without what its pages bring.
        """
        header = request.headers.get("authorization")
        if header is not None:
            kind, _, text = header.partition(" ")
            who = await self._recognised(text.strip()) if kind.lower() == "bearer" and text.strip().startswith("s7_") else None
            if who is None:
                why = "this token is none, was revoked or has expired: `stepseven token create` makes one"
                raise Problem(401, "unauthorized", why, headers=_CHALLENGE)
            return who
        cookie = request.cookies.get(SESSION)
        who = await self._recognised(cookie) if cookie is not None and cookie.startswith("s7s_") else None
        if who is None:
            why = "say who asks: send `Authorization: Bearer TOKEN` (`stepseven token create` makes one), or sign in"
            raise Problem(401, "unauthorized", why, headers=_CHALLENGE)
        if request.method not in SAFE:
            self.check_form(request, who, request.headers.get(FORM_HEADER))
        return who

    def check_form(self, request: Request, who: Who, brought: str | None) -> None:
        """Make sure that a change in a session comes from one of our own pages.

        Raises:
            Problem: it does not.
        """
        if not same_origin(request) or brought is None or not tokens.same(brought, who.csrf):
            raise Problem(403, "not_from_here", f"a change in a session needs the header {FORM_HEADER}, with the cookie {FORM}")

    async def _recognised(self, text: str) -> Who | None:
        now = self.layer.services.edge.monotonic()
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        seen = self._seen.get(name)
        if seen is not None and seen.until > now:
            return seen.who
        now_us = self.layer.services.edge.now_us()

        def unit(tx: Tx) -> Who | None:
            return tokens.find(tx, text, now_us)

        who = await self.layer.store.read(unit)
        if len(self._seen) >= MOST_CACHED:
            self._seen.clear()
        left = CACHED_S if who is None or who.until_us is None else min(CACHED_S, (who.until_us - now_us) / 1e6)
        if who is not None:  # who is nobody now may be somebody in a moment
            self._seen[name] = Seen(who=who, until=now + left)
        return who

    async def again(self, who: Who) -> bool:
        """Whether somebody recognised earlier still may ask: for what goes on for long. Looks into the store."""
        now_us = self.layer.services.edge.now_us()

        def unit(tx: Tx) -> bool:
            if who.id.startswith("s_"):
                row = tx.one(tx.sql.session, {"id": who.id})
                return row is not None and row["revoked_us"] is None and row["expires_us"] > now_us
            token = tokens.known(tx, who.id)
            return token is not None and tokens.holds(token, now_us)

        return await self.layer.store.read(unit)

    def forget(self) -> None:
        """Believe nobody without looking: a token was revoked here, or somebody signed out."""
        self._seen.clear()

    def keep(self, response: Response, session: str, form: str) -> None:
        """Give the browser what it has to bring from now on."""
        for name, value, hidden in ((SESSION, session, True), (FORM, form, False)):
            response.set_cookie(
                name, value, max_age=tokens.SESSION_US // 1_000_000, path="/", secure=self.secure, httponly=hidden, samesite="lax"
            )

    def drop(self, response: Response) -> None:
        """Take it away again."""
        for name in (SESSION, FORM):
            response.delete_cookie(name, path="/", secure=self.secure, samesite="lax")


def same_origin(request: Request) -> bool:
    """Whether a browser sends this from one of our own pages; a program that says nothing about it is none."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None or (site == "same-origin" and origin == "null"):  # pages that send no referrer send no origin either
        return True
    return hmac.compare_digest(urlsplit(origin).netloc.encode(), request.headers.get("host", "").encode())
