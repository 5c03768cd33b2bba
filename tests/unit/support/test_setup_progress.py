"""Set-up says how far it is, by what pip prints and by what has arrived."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci" / "setup.py"


@pytest.fixture
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dragoman_setup", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_progress_names_the_package_and_then_counts_what_has_arrived(setup: ModuleType, tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "pip-24.0.dist-info").mkdir()
    progress = setup.Progress(str(tmp_path))
    assert str(progress) == "looking"
    progress.hear("Collecting apsw>=3.54 (from dragoman==0.1.0)")
    progress.hear("  Downloading apsw-3.54.whl (7.2 MB)")
    progress.hear("Requirement already satisfied: rich in ./lib")
    assert str(progress) == "found 2: rich"
    progress.hear("Installing collected packages: apsw, cyclopts, dragoman")
    (packages / "apsw-3.54.dist-info").mkdir()
    assert str(progress) == "installing 1 of 3"


def test_a_step_that_fails_shows_the_programs_last_lines(setup: ModuleType) -> None:
    failing = [sys.executable, "-c", "print('no such package'); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match=r"no such package\n\n.* failed with 3"):
        setup.run(failing, setup.Step("2/3", "the packages"))


def test_an_old_python_is_told_which_one_is_needed(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.sys, "version_info", (3, 10, 1))
    with pytest.raises(SystemExit, match=r"needs python3 >= 3.11, this is 3\.10\.1; set PYTHON="):
        setup.main(".venv", "dev")
