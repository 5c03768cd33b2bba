"""Work without success, in a2acp's codes.

    the handler                        code
    ---------------------------------  --------------------------------------------------
    raised a `CallFailed`              its own, with its details
    took longer than it may            TIMEOUT
    rejected, or raised anything else  INTERNAL_ERROR, not to be tried again
    has no such parameter, or another  SCHEMA_MISMATCH, with the field
    type
    does not exist                     CAPABILITY_NOT_FOUND, with what does

Errors travel in clear: of personal work only what the handler said on purpose is told.
"""

from __future__ import annotations

from typing import Any

from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.sdk.a2acp.requests import PERSONAL
from dragoman.sdk.messages import Decline, Outcome
from dragoman.sdk.work.outcome import TIMED_OUT


def failed(outcome: Outcome) -> Refusal:
    """What an end without success is told as."""
    known, is_personal = outcome.error or {}, PERSONAL in outcome.correlation.about
    details: dict[str, Any] = {**(known.get("details") or {})}
    if "code" in known:  # the handler's own words
        return Refusal(
            code=Code(known["code"]), message=outcome.output, details=details, after=known.get("retry_after")
        )
    words = outcome.output.rstrip().rpartition("\n")[2] or "the work failed"
    if is_personal and known.get("type") != "Rejected" and outcome.exit_code != TIMED_OUT:
        words = f"the work failed ({known.get('type', 'Error')}); what it said may be personal"
    code = Code.TIMEOUT if outcome.exit_code == TIMED_OUT else Code.INTERNAL_ERROR
    return Refusal(
        code=code,
        message=words,
        details={"retryable": False, "type": known.get("type"), "exit_code": outcome.exit_code},
    )


def declined(decline: Decline) -> Refusal:
    """Why work was not begun."""
    if decline.kind == "unsupported":
        details: dict[str, Any] = {"intent": decline.work_type, "supported": list(decline.supported)}
        return Refusal(code=Code.CAPABILITY_NOT_FOUND, message=decline.message, details=details)
    field = decline.field and decline.field.replace("parameters", "payload", 1)
    details = {"field": field} if field else {}
    words = decline.sentence
    return Refusal(code=Code.SCHEMA_MISMATCH, message=words, details=details)
