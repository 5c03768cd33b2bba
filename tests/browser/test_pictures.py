"""The pictures of the documents are there, small, and shown. `make pictures` takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.browser.pictures import LARGEST, PLACE, SIZE

ROOT = Path(__file__).resolve().parents[2]
STILL = ("overview.png", "inbox.png", "sequence-light.png", "sequence-dark.png")


@pytest.mark.parametrize("name", [*STILL, "sequence.gif"])
def test_a_picture_is_small_and_shown(name: str) -> None:
    path = PLACE / name
    assert path.stat().st_size < LARGEST[path.suffix]
    texts = [(ROOT / document).read_text() for document in ("README.md", "docs/index.md")]
    assert any(f"pictures/{name}" in text for text in texts)


@pytest.mark.parametrize("name", STILL)
def test_a_picture_has_the_size_of_a_usual_screen(name: str) -> None:
    with Image.open(PLACE / name) as image:
        assert image.size == (SIZE["width"], SIZE["height"])


def test_the_sequence_grows() -> None:
    with Image.open(PLACE / "sequence.gif") as film:
        assert getattr(film, "n_frames", 1) > 4
