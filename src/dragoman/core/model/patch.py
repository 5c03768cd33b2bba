"""JSON merge patch (RFC 7396), and what a patch changed."""

from __future__ import annotations

from typing import Any


def merged(target: Any, patch: Any) -> Any:
    """The target with the patch applied: null removes, objects are merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A patch that makes the one out of the other. Objects inside are given whole where they differ."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            patch[name] = difference(before, value)
        else:
            patch[name] = value
    return patch
