"""The document's message schema, for others to read: `/schemas/a2acp.json` is this value.

It is the document's, word for word but for its remarks. The codec is stricter where the decisions are (D2), and never
more lenient: what it accepts, this schema accepts, which a test holds against jsonschema-rs.
"""

from __future__ import annotations

from typing import Any

_AGENT: dict[str, Any] = {
    "type": "object",
    "required": ["agent_id", "domain", "version"],
    "properties": {
        "agent_id": {"type": "string"},
        "domain": {"type": "string"},
        "version": {"type": "string", "pattern": "^\\d+\\.\\d+\\.\\d+$"},
    },
}
_SECURITY: dict[str, Any] = {
    "type": "object",
    "required": ["auth_token"],
    "properties": {
        "auth_token": {"type": "string"},
        "encryption": {"type": "string", "enum": ["none", "aes256"], "default": "none"},
    },
}
MESSAGE: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["protocol_version", "message_id", "timestamp", "source_agent", "target_agent", "message_type"],
    "properties": {
        "protocol_version": {"type": "string", "pattern": "^\\d+\\.\\d+$"},
        "message_id": {"type": "string", "format": "uuid"},
        "timestamp": {"type": "string", "format": "date-time"},
        "source_agent": {"$ref": "#/definitions/Agent"},
        "target_agent": {"$ref": "#/definitions/Agent"},
        "message_type": {"type": "string", "enum": ["request", "response", "event", "error"]},
        "intent": {"type": "string"},
        "payload": {"type": "object"},
        "security": {"$ref": "#/definitions/Security"},
    },
    "definitions": {"Agent": _AGENT, "Security": _SECURITY},
}
