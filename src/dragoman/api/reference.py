"""The reference of the management API as a page: `/docs`. It is written from the same document as `/openapi.json`, in
plain HTML without a script, with the dashboard's own style."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]
"""A part of the OpenAPI document."""


def page(document: Json) -> str:
    """The whole page."""
    groups: dict[str, list[tuple[str, str, Json]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    named = document["components"]["schemas"]
    body = "".join(_group(tag, operations, named) for tag, operations in sorted(groups.items()))
    index = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a> ' for tag in sorted(groups))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="/favicon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/assets/app.css"><title>API reference · Dragoman</title></head><body>'
        f'<main class="page"><div class="page-head"><h1>API reference</h1><a href="/">Dashboard</a> '
        f'<a href="/openapi.json">OpenAPI document</a></div><p class="row">{index}</p>{body}</main></body></html>'
    )


def _group(tag: str, operations: list[tuple[str, str, Json]], named: Json) -> str:
    rows = "".join(_operation(method, path, operation, named) for method, path, operation in operations)
    return f'<section class="card" id="{escape(tag)}"><header><h2>{escape(tag)}</h2></header>{rows}</section>'


def _operation(method: str, path: str, operation: Json, named: Json) -> str:
    parts = "".join(_parts(operation, named))
    return (
        f'<details class="line"><summary><strong>{method}</strong> <code>{escape(path)}</code> '
        f'<span class="muted">{escape(operation["summary"])}</span></summary>{parts}</details>'
    )


def _parts(operation: Json, named: Json) -> Iterator[str]:
    for parameter in operation["parameters"]:
        text = parameter.get("description") or json.dumps(parameter["schema"])
        name, place = escape(parameter["name"]), escape(parameter["in"])
        yield f'<p class="small"><code>{name}</code> ({place}) {escape(text)}</p>'
    if "requestBody" in operation:
        yield _content("Body", operation["requestBody"]["content"], named)
    for status, response in operation["responses"].items():
        yield _content(f"{status} {response['description']}", response.get("content", {}), named)


def _content(title: str, content: Json, named: Json) -> str:
    """A body by its media type; the shape of a named schema is written out, those inside it are named."""
    shown = [f"<h3>{escape(title)}</h3>"]
    for media_type, body in content.items():
        schema = body["schema"]
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        if name == "ProblemOut":
            continue  # the same for every refusal
        text = json.dumps(named.get(name, schema), indent=1, ensure_ascii=False)
        shown.append(f'<p class="small muted">{escape(media_type)}</p><pre class="block">{escape(text)}</pre>')
    return "".join(shown)
