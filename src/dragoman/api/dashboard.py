"""The dashboard: one page and its assets, built from `web/` into the package. They hold no data: what a person sees
comes from the management API under their own session.

Every view of the dashboard has an address of its own. All addresses get the same page, whose script reads the address.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.context import Context, Plain
from dragoman.api.problems import Problem
from dragoman.messages.faults import Kind

VIEWS = (
    "/", "/inbox", "/tasks", "/tasks/{id}", "/agents", "/agents/{id}", "/deadletters", "/contracts", "/playground",
    "/wire", "/audit",
)  # fmt: skip

TYPES = {
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def _file(name: str) -> tuple[bytes, str]:
    """A built file and its ETag."""
    place = resources.files("dragoman.api") / "dashboard"
    folder = place / "assets" if name.startswith("app.") else place
    data = (folder / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def _served(request: Request, name: str, media_type: str) -> Response:
    data, tag = _file(name)
    headers = {**HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=media_type)


async def page(context: Context, call: Plain) -> Response:
    return _served(call.request, "index.html", "text/html")


async def asset(context: Context, call: Plain) -> Response:
    name = str(call.request.path_params["name"])
    if name not in TYPES:
        raise Problem(Kind.NOT_FOUND, "there is no such asset")
    return _served(call.request, name, TYPES[name])


async def favicon(context: Context, call: Plain) -> Response:
    return _served(call.request, "favicon.svg", TYPES["favicon.svg"])
