"""The hub's structured logs: set up once, for the hub's own lines and those of the libraries.

Logs never hold a secret: values under names such as `token`, and bearer tokens anywhere in a text, are removed before
anything is written. Personal data are removed first (`security.redaction`). Control and direction characters are
escaped, so input from outside cannot forge a line.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from dragoman.security.redaction import blot_personal

BLOT = "[secret]"
SECRET_NAMES = re.compile(r"token|secret|password|passwd|authorization|credential|cookie|api_?key|private", re.I)
HARMLESS_NAMES = frozenset({"token_status", "secrets_blotted"})
SECRET_TEXT = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{6,}|([?&#](?:access_)?token=)[^&\s\"']+")
# Control characters, and those that change the direction or are not seen: U+2028 and its kin, bidi, zero width.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
DEEPEST = 6


def blot(value: Any, depth: int = 0) -> Any:
    """The value without secrets, and without characters that could forge a line."""
    if isinstance(value, str):
        text = SECRET_TEXT.sub(lambda match: f"{match[1] or match[2]}{BLOT}", value)
        return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(name): _under(str(name), inner, depth) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [blot(inner, depth + 1) for inner in value]
    return value if isinstance(value, (int, float, bool, type(None))) else blot(str(value), depth + 1)


def _under(name: str, value: Any, depth: int) -> Any:
    if SECRET_NAMES.search(name) and name not in HARMLESS_NAMES and value is not None:
        return BLOT
    return blot(value, depth + 1)


def blot_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The last processor: removes secrets before an event is written."""
    return {blot(name): _under(name, value, 0) for name, value in event.items()}


def without_personal(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The first processor: removes personal data. A library's text may quote anything, so all of it counts as
    contents."""
    record = event.pop("_record", None)
    if record is None:
        return blot_personal(logger, method, event)
    ours, text = event.pop("_from_structlog", False), event.pop("event", "")
    kept = blot_personal(logger, method, {"text": text, **event})
    return {"event": kept.pop("text"), **kept, "_record": record, "_from_structlog": ours}


def not_about_peers_that_left(record: logging.LogRecord) -> bool:
    """gRPC logs an error with a traceback when a peer resets a stream that is in use. Any peer can do that at any time,
    and the hub has its own line about it."""
    return "ExecuteBatchError" not in record.getMessage()


def set_up_logs(*, level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """All logs, the hub's and the libraries', go through the same chain to `stream` (stderr).

    `form` is "json" (one object a line) or "console".
    """
    out = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        without_personal,  # before anything could make a text of it
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if form == "console"
        else structlog.processors.JSONRenderer()  # ASCII only: what is not, is escaped
    )
    # A traceback becomes text before the blotting, so that a secret in a message of an exception is blotted too.
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            blot_secrets,
            renderer,
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(not_about_peers_that_left)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets", "httpx2", "httpcore2"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        # They log every request with its address, and an address may hold what must not be logged.
        library.setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
