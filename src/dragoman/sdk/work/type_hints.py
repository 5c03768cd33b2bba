"""Types of a handler's parameters and results beyond those that msgspec knows.

    hint                  in JSON                            becomes
    --------------------  ---------------------------------  -----------------------
    a model of pydantic   what its own schema says           the model, validated
    pathlib.Path          text                               the path

Pydantic is not imported: its models say themselves what they are and how they are made.
"""

from __future__ import annotations

import inspect
from pathlib import PurePath
from typing import Any

import msgspec

DEFS = "#/$defs/"


def schema(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a hint, with its parts in `$defs`. Raises `TypeError` where it has none."""
    parts: dict[str, Any] = {}

    def described(kind: Any) -> dict[str, Any]:
        if _is_model(kind):
            own: dict[str, Any] = kind.model_json_schema(ref_template=f"{DEFS}{kind.__name__}_{{model}}")
            parts.update((f"{kind.__name__}_{name}", part) for name, part in own.pop("$defs", {}).items())
            return own
        if inspect.isclass(kind) and issubclass(kind, PurePath):
            return {"type": "string"}
        raise TypeError(f"{getattr(kind, '__qualname__', kind)} is not supported")

    (top,), found = msgspec.json.schema_components([hint], schema_hook=described, ref_template=f"{DEFS}{{name}}")
    parts = found | parts
    name = top.get("$ref", "").removeprefix(DEFS)
    if name in found:
        top = parts.pop(name)
    return {**top, "$defs": parts} if parts else top


def made(kind: type, value: Any) -> Any:
    """The value of such a type, from what stands in the JSON. Raises `ValueError` where it does not fit."""
    if _is_model(kind):
        return _validated(kind, value)
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)


def _is_model(kind: Any) -> bool:
    return inspect.isclass(kind) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        first = errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
