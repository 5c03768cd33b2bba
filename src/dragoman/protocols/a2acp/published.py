"""The document's message schema, for others to read: `/schemas/a2acp.json` is this value.

It is the document's, word for word. The codec is stricter where the decisions are (D2), and never
more lenient: what it accepts, this schema accepts, which a test holds against jsonschema-rs.
"""

from __future__ import annotations

from typing import Any

_AGENT: dict[str, Any] = {
    "type": "object",
    "required": ["agent_id", "domain", "version"],
    "properties": {
        "agent_id": {"type": "string", "description": "Unique agent identifier"},
        "domain": {"type": "string", "description": "Domain this agent belongs to"},
        "version": {
            "type": "string",
            "pattern": "^\\d+\\.\\d+\\.\\d+$",
            "description": "Semantic version (e.g., '1.2.3')",
        },
    },
}
_SECURITY: dict[str, Any] = {
    "type": "object",
    "required": ["auth_token"],
    "properties": {
        "auth_token": {"type": "string", "description": "JWT authentication token"},
        "encryption": {"type": "string", "enum": ["none", "aes256"], "default": "none"},
    },
}
MESSAGE: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["protocol_version", "message_id", "timestamp", "source_agent", "target_agent", "message_type"],
    "properties": {
        "protocol_version": {
            "type": "string",
            "pattern": "^\\d+\\.\\d+$",
            "description": "Protocol version (e.g., '1.0')",
        },
        "message_id": {"type": "string", "format": "uuid", "description": "Unique message identifier (UUID v4)"},
        "timestamp": {"type": "string", "format": "date-time", "description": "ISO 8601 timestamp (UTC)"},
        "source_agent": {"$ref": "#/definitions/Agent"},
        "target_agent": {"$ref": "#/definitions/Agent"},
        "message_type": {"type": "string", "enum": ["request", "response", "event", "error"]},
        "intent": {"type": "string", "description": "Agent intent (e.g., 'provision_test_dataset')"},
        "payload": {"type": "object", "description": "Message-specific data"},
        "security": {"$ref": "#/definitions/Security"},
    },
    "definitions": {"Agent": _AGENT, "Security": _SECURITY},
}
