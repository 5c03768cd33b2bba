"""No input takes a decoder by surprise: it is understood, or refused as the decoder says it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from tests.fuzz.decoders import DECODERS, Decoder
from tests.fuzz.hostile import inputs
from tests.fuzz.samples import CANARY
from tests.fuzz.thoroughness import THOROUGH, UNTIMED, for_a_while
from tests.fuzz.work import bounded


def try_once(decoder: Decoder, data: bytes, *, counted: bool = True) -> None:
    """All that is promised of a decoder, for one input."""
    directory, each = decoder.steps
    try:
        value = bounded(directory + each * len(data), lambda: decoder.read(data)) if counted else decoder.read(data)
    except decoder.refusals as refusal:
        shown = f"{refusal} {refusal!r} {vars(refusal)!r}"
        assert not decoder.is_secret(data) or CANARY not in shown, shown
        return
    if decoder.again is not None:
        written = decoder.again(value)
        same = decoder.read(written)
        assert same == value or decoder.again(same) == written


def warmed(name: str) -> Decoder:
    """What is worked out once, at the first use, is no work that an input makes."""
    decoder = DECODERS[name]
    for data in decoder.samples():
        try_once(decoder, data, counted=False)
    return decoder


def tried(name: str, how: settings) -> Callable[[], None]:
    decoder = warmed(name)

    @how
    @given(inputs(decoder.samples(), decoder.trees()))
    def attempt(data: bytes) -> None:
        try_once(decoder, data)

    return attempt


@pytest.mark.parametrize("name", DECODERS)
def test_good_samples_are_read(name: str) -> None:
    decoder = warmed(name)
    for data in decoder.samples():
        try_once(decoder, data)


@pytest.mark.parametrize("name", DECODERS)
def test_made_up_input_is_read_or_refused(name: str) -> None:
    tried(name, UNTIMED)()


@pytest.mark.soak
@pytest.mark.parametrize("name", DECODERS)
def test_made_up_input_is_read_or_refused_for_a_while(name: str) -> None:
    for_a_while(tried(name, THOROUGH))
