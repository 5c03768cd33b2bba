"""The glossary's words are used, each is defined once, and the pet names of earlier versions do not come back.

`BANNED` has the words that a reader could not search for. Documents and identifiers in `src` are free of them.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dragoman"
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()

BANNED = {
    "anew": "retry",
    "booth": "translator",
    "borders": "domain policy",
    "brood": "descendants",
    "cargo": "kind",
    "curtain": "scenario",
    "desk": "session",
    "door": "endpoint",
    "edge": "endpoint",
    "errand": "correlation",
    "floor": "directory",
    "heard": "decoded",
    "heirs": "subtask owner",
    "letter": "direct message",
    "manners": "protocol capabilities",
    "nursery": "spawner",
    "parcel": "outgoing message",
    "parting": "removal",
    "persona": "identity",
    "pump": "connection loop",
    "purse": "token cache",
    "recipe": "spec",
    "said": "inbound",
    "saying": "builder",
    "story": "history",
    "told": "mapping",
    "tongue": "session",
    "voice": "what a protocol can carry",
    "waking": "wake time",
    "walls": "sandbox policy",
}
"""The word that is not used, and what the glossary calls the thing."""

IN_DOCUMENTS = BANNED.keys() - {"anew", "heard", "said", "saying", "told", "edge", "story", "recipe", "voice"}
"""As plain English these are allowed in a sentence; the others have no other meaning here."""

NOT_PETS = re.compile(
    r"dead_?letters?|deadletters?|DeadLetters?|DEAD_?LETTERS?|ascii_letters|^floor$|^pad_edge$", re.IGNORECASE
)
PROSE_NOT_PETS = re.compile(r"dead[ -]letters?|letters, digits", re.IGNORECASE)
CODE = re.compile(r"^```.*?^```$|`[^`]*`|\]\([^)]*\)|<!-- figures.*<!-- /figures -->", re.DOTALL | re.MULTILINE)
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "README.md")
)


def stem(word: str) -> str:
    """The banned word that this one is, in singular or plural; else itself."""
    lower = word.lower()
    return next((form for form in (lower, lower.removesuffix("s")) if form in BANNED), lower)


@cache
def pet_names() -> dict[str, set[str]]:
    """The banned words in the identifiers of each package."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0]
        if path.name.endswith("_pb2.py"):
            continue
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME:
                parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", NOT_PETS.sub("", token.string))
                found[package] |= {stem(part) for part in parts} & BANNED.keys()
    return found


def test_no_identifier_uses_a_pet_name() -> None:
    advice = {f"{package}: {word} → {BANNED[word]}" for package, words in pet_names().items() for word in words}
    assert advice == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_uses_a_pet_name(name: str) -> None:
    text = PROSE_NOT_PETS.sub("", CODE.sub("", (ROOT / name).read_text()))
    words = {stem(word) for word in re.findall(r"[A-Za-z]+", text)}
    assert {f"{word} → {BANNED[word]}" for word in words & IN_DOCUMENTS} == set()


NOBODY_IN_PARTICULAR = re.compile(r"\b(somebody|whoever|what was said|is told|ha(s|ve) no word)\b", re.IGNORECASE)


@pytest.mark.parametrize("name", [*DOCUMENTS, "src"])
def test_sentences_say_who_acts(name: str) -> None:
    files = SOURCE.rglob("*.py") if name == "src" else [ROOT / name]
    found = {f"{file.name}: {match[0]}" for file in files for match in NOBODY_IN_PARTICULAR.finditer(file.read_text())}
    assert found == set()


def terms() -> list[str]:
    return re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, flags=re.MULTILINE)


def test_the_glossary_defines_each_word_once() -> None:
    assert len(terms()) == len(set(terms()))
    assert set(terms()).isdisjoint(BANNED)


@cache
def spoken() -> str:
    """Everything in `src`, with `_`, capitals and line ends taken for spaces: `SubtaskOwner` is "subtask owner"."""
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    names = " ".join(path.stem for path in SOURCE.rglob("*.py"))
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", f"{names} {' '.join(texts)}")
    return re.sub(r"[_\s#-]+", " ", spaced).lower()


@pytest.mark.parametrize("term", terms())
def test_every_word_of_the_glossary_is_used_in_the_code(term: str) -> None:
    assert term in spoken()
