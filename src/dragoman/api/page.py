"""The status page at `/`: one static document, the same for everybody.

It holds no data. Its script asks for the admin token once, keeps it in the browser's sessionStorage, and reads the API
with it; what it reads is only ever put into the page as text. The document allows itself nothing but its own style
and script (by their hashes) and requests to where it came from. A dashboard takes its place later.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.context import Context


@cache
def _document() -> tuple[bytes, str]:
    folder = resources.files("dragoman.api") / "status"
    style = (folder / "status.css").read_text("utf-8")
    script = (folder / "status.js").read_text("utf-8")
    frame = (folder / "status.html").read_text("utf-8")
    page = frame.replace("/* status.css */", style).replace("/* status.js */", script)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    return page.encode(), policy


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


async def status_page(context: Context, request: Request) -> Response:
    page, policy = _document()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
    return Response(page, headers=headers, media_type="text/html")
