"""`.ci/unreachable.py` names code that no entry point reaches, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / ".ci" / "unreachable.py"
PROJECT = """
[project.scripts]
dragoman = "dragoman.cli:main"
[project.entry-points.pytest11]
dragoman = "dragoman.plugin"
"""
FILES = {
    "__init__.py": "from dragoman.api import Public\n",
    "api.py": "class Public:\n    def offered(self): ...\n    def _hidden(self): ...\n",
    "plugin.py": "def fixture(): ...\n",
    "cli.py": (
        "import importlib\n"
        "from dragoman import used\n"
        "TABLE = {'x': 'dragoman.lazy:start'}\n"
        "def main():\n"
        "    used.called(TABLE, importlib.import_module(f'dragoman.parts.{1}'))\n"
    ),
    "used.py": (
        "LIMIT = 1\n"
        "UNUSED = 2\n"
        "def called(*given): return Kept().method(LIMIT)\n"
        "def only_by_itself(): return only_by_itself()\n"
        "class Kept:\n"
        "    def method(self, n): return n\n"
        "    def nobody_calls(self): ...\n"
        "    def __len__(self): return 0\n"
    ),
    "lazy.py": "def start(): ...\ndef stop(): ...\n",
    "parts/__init__.py": "",
    "parts/one.py": "def run(): ...\n",
    "machine.py": "from dragoman.used import called\n",
}


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unreachable", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unreachable"] = module
    spec.loader.exec_module(module)
    return module


def test_it_names_what_only_tests_could_use(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name, code in FILES.items():
        path = tmp_path / "src" / "dragoman" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    assert tool.unreachable(tmp_path) == [
        "dragoman.api:Public._hidden",
        "dragoman.lazy:stop",
        "dragoman.machine",
        "dragoman.used:Kept.nobody_calls",
        "dragoman.used:UNUSED",
        "dragoman.used:only_by_itself",
    ]
