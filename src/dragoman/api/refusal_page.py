"""A refusal as a page for a person: what happened, and what to do.

A browser opens a few addresses by itself: a login link, the way back from an identity provider, a mistyped address. It
says that it wants HTML, and gets this page with the status of the problem; everything else gets the problem as JSON.
The page has no script, names no code and no token, and may be shown to a person who is not logged in.
"""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.dashboard import HEADERS
from dragoman.api.problems import Next
from dragoman.messages.faults import Fault

OPENED = frozenset({"/login/{code}", "/oidc/login", "/oidc/callback"})
"""Routes of the API that a person opens in a browser."""
TITLES = {
    "/login/{code}": "This login link does not count any more",
    "/oidc/login": "The identity provider cannot be asked now",
    "/oidc/callback": "The login did not succeed",
}
ADVICE = {
    "/login/{code}": (
        "A link logs one browser in, once, and within 15 minutes. If it was this browser, you are logged in: open the "
        "dashboard. If not, ask an admin for a new link, or log in with a token."
    ),
    "/oidc/login": "Try again in a moment, or log in with a token.",
    "/oidc/callback": "Begin again at the login, in the same browser.",
}
MISSING = "There is no such page"
MISSING_ADVICE = "The address may be mistyped, or the page was renamed."


def wants_page(request: Request) -> bool:
    """Whether a browser opened the address itself: its scripts ask for JSON."""
    return request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")


def refusal_page(path: str, fault: Fault, next: Next | None, status: int) -> Response:
    """`path` is the route's; its advice is for a person, that of the problem is a command."""
    title = TITLES.get(path, MISSING)
    advice = ADVICE.get(path, MISSING_ADVICE)
    command = None if next is None or path not in TITLES else next.command
    parts = [
        f"<p>{escape(fault.message[:1].upper() + fault.message[1:])}.</p>",
        f'<p class="muted">{escape(advice)}</p>',
        '<p class="row"><a class="button primary" href="/">Open the dashboard</a></p>',
    ]
    if command is not None:
        parts.append(f'<p class="muted small">A new link, in a terminal beside the hub</p><pre>{escape(command)}</pre>')
    return Response(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="/favicon.svg" type="image/svg+xml">'
        f'<link rel="stylesheet" href="/assets/app.css"><title>{escape(title)} · Dragoman</title></head><body>'
        '<main class="login"><section class="card"><header><img src="/favicon.svg" alt="" width="28" height="28">'
        f"<h1>{escape(title)}</h1></header>"
        f'<div class="body stack">{"".join(parts)}</div></section></main></body></html>',
        status_code=status,
        headers={**HEADERS, "Cache-Control": "no-store", "Vary": "Accept"},
        media_type="text/html",
    )
