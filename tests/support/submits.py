"""A `Submit` from flat fields, as tests like to name them."""

from __future__ import annotations

from typing import Any

from dragoman.core.commands import Agreement, Lineage, Reply, Routing, Submit, Timing

GROUPS: dict[str, Any] = {
    "routing": Routing,
    "timing": Timing,
    "lineage": Lineage,
    "reply": Reply,
    "agreement": Agreement,
}


def submit_of(**fields: Any) -> Submit:
    """Each field goes where it belongs: `pinned` into the routing, `deadline` into the timing, …"""
    for name, group in GROUPS.items():
        given = {field: fields.pop(field) for field in group.__struct_fields__ if field in fields}
        if given:
            fields[name] = group(**given)
    return Submit(**fields)
