"""What attacks have in common: what agents offer, what must not leak, what the hub wrote down."""

from __future__ import annotations

from typing import Any

from tests.conformance.a2acp.plain import PROVISION, Plain
from tests.support.hubproc import HubProcess

Json = dict[str, Any]

INTENT = PROVISION["intent"]

CANARY = "canary-4e81bd"

RECORD: Json = {
    "intent": "read_record",
    "input_schema": {
        "type": "object",
        "properties": {"patient": {"type": "string"}, "visits": {"additionalProperties": {"type": "integer"}}},
        "required": ["patient"],
    },
    "output_schema": {
        "type": "object",
        "properties": {"beds": {"additionalProperties": False}},
        "required": ["ward"],
    },
    "pii": True,
}


def audited(hub: HubProcess, agent: Plain) -> list[tuple[str, str]]:
    records: list[Json] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = hub.admin.get(f"/api/v1/audit?principal={agent.id}&limit=500&cursor={cursor}").json
        records, cursor = records + page["records"], page["next"]
    return [(one["action"], one["outcome"]) for one in records]
