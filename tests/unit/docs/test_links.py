"""What the documents name exists: files, directories, headings, make targets."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HIDDEN = {"node_modules", "results"}
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in HIDDEN for part in path.relative_to(ROOT).parts)
)
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(document: str) -> set[str]:
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    document = ROOT / name
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (document.parent / path).resolve() if path else document
        assert found.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in anchors(found.read_text()), f"{name}: {target}"


def test_the_layout_in_the_architecture_exists() -> None:
    """The block that begins with `src/dragoman/`: each line is a directory and what is in it, by indentation."""
    text = (ROOT / "docs/architecture.md").read_text()
    [layout] = [block for block in FENCE.findall(text) if block.startswith("```\nsrc/dragoman/")]
    above: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in layout.splitlines()[1:-1]:
        directory, *inside = line.split()
        depth = len(line) - len(line.lstrip())
        while above[-1][0] >= depth:
            above.pop()
        here = above[-1][1] / directory
        assert here.is_dir(), directory
        for name in inside:
            assert (here / name).exists(), f"{directory}{name}"
            assert (here / name).is_dir() == name.endswith("/"), f"{directory}{name}"
        above.append((depth, here))


def test_the_functions_on_the_way_of_a_request_exist() -> None:
    """`Intake.enqueue_then` in `app/intake.py`: the class or function is defined in that file."""
    text = (ROOT / "docs/architecture.md").read_text()
    steps = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", text)
    assert len(steps) > 10
    for name, file in steps:
        tree = ast.parse((ROOT / "src/dragoman" / file).read_text())
        defined: list[ast.AST] = [tree]
        for part in name.split("."):
            inside = [node for one in defined for node in ast.iter_child_nodes(one)]
            defined = [node for node in inside if getattr(node, "name", None) == part]
        assert defined, f"{file}: {name}"


def test_every_package_stands_in_the_layout() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    packages = {path.parent.name for path in (ROOT / "src/dragoman").glob("*/__init__.py")}
    assert {name for name in packages if f"  {name}/ " not in text} == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_named_in_passing_exist(name: str) -> None:
    """`core/hub.py`, `tests/faults/simulation.py`: from the root, the package, or beside the document."""
    document = ROOT / name
    places = (ROOT, ROOT / "src/dragoman", document.parent)
    for path in re.findall(r"`([\w./]+/[\w.]+\.(?:py|md|toml|txt))`", FENCE.sub("", document.read_text())):
        if path[0] not in "/.":  # those are meant on the user's machine
            assert any((place / path).exists() for place in places), f"{name}: {path}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", (ROOT / name).read_text(), flags=re.MULTILINE))
    assert named <= targets


def test_decision_records_are_numbered_once_and_listed() -> None:
    directory = ROOT / "docs/adr"
    index = (directory / "README.md").read_text()
    records = [path for path in directory.glob("*.md") if path.name != "README.md"]
    numbers = [int(record.name[:4]) for record in records]
    assert len(set(numbers)) == len(numbers)
    for number, record in zip(numbers, records, strict=True):
        assert re.search(rf"^\| \[?{number}\b", index, flags=re.MULTILINE), f"{record.name} is not in the index"
        assert record.read_text().startswith(f"# {number}. "), record.name
