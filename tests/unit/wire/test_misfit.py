"""msgspec's own sentences, as it writes them today: another version with other words must be noticed here."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from dragoman.wire.misfit import explain

Key = Annotated[str, msgspec.Meta(min_length=2)]


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    n: int


class Outer(msgspec.Struct):
    inner: Inner
    by_name: dict[Key, int] = {}
    note: str | None = None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"inner": {"n": "1"}}, ("Expected `int`, got `str`", "base.inner.n")),
        ({"inner": {}}, ("missing required field", "base.inner.n")),
        ({"inner": {"n": 1, "m": 2}}, ("Object contains unknown field `m`", "base.inner.m")),
        ({"inner": {"n": 1}, "by_name": {"a": 1}}, ("Expected `str` of length >= 2", "base.by_name")),
        ({"inner": {"n": 1}, "note": 7}, ("Expected `str` or `null`, got `int`", "base.note")),
        ({}, ("missing required field", "base.inner")),
        ([], ("Expected `object`, got `array`", "base")),
    ],
)
def test_a_misfit_names_its_field(value: Any, said: tuple[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Outer)
    assert explain(caught.value, "base") == said
