"""Breaking the hub on purpose: a checker that does not notice proves nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest


def spoil(monkeypatch: pytest.MonkeyPatch, package: str, name: str, wrong: Any) -> None:
    """Put something wrong in the place of a function, in every module of a package that calls it."""
    calling = [module for path, module in sys.modules.items() if f"{path}.".startswith(f"{package}.")]
    for module in [module for module in calling if hasattr(module, name)]:
        monkeypatch.setattr(module, name, wrong)
