"""A piece of content travels once in a message (D9): clients of gRPC read 4 MiB by default, and nobody reads a copy.

Below `BESIDE` bytes the same content may stand twice, in the document's field for readers of text and in a field of
ours for programs. Above it, it stands in the document's field, or in ours for a reader who declared that field.
"""

from __future__ import annotations

from dragoman.protocols.coven.types import Done

BESIDE = 64 * 1024


def fits_beside(text: str) -> bool:
    """Whether a text may stand beside a field that says the same."""
    return len(text) <= BESIDE and len(text.encode()) <= BESIDE


def done(text: str, result_json: str) -> Done:
    """The end of a request with a text and a result, which may be the same."""
    if result_json and result_json == text and not fits_beside(text):
        return Done(full_response=text, is_json=True)
    return Done(full_response=text, result_json=result_json)


def result_json(end: Done, text: str) -> str:
    """The JSON of the result, if there is one; `text` is the whole answer (D8)."""
    return text if end.is_json else end.result_json
