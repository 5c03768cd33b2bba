"""`dragoman policy`: which domains may ask which."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Column, col

app = App(name="policy", help="Which domains may ask which: allow, forbid, rm, ls.")

Source = Annotated[str, Parameter(name="FROM", help="The domain that asks; '*' is any.")]
Target = Annotated[str, Parameter(name="TO", help="The domain that is asked; '*' is any.")]
Intents = Annotated[
    list[str] | None, Parameter(name="--intent", negative=(), help="Only this intent; may be repeated.")
]

ANY = "*"
HOME = "default"
"""The domain of agents that have none."""

COLUMNS = (
    col("from", "source"),
    col("to", "target"),
    Column("may", lambda entry: "yes" if entry.get("allow") else "no"),
    Column("intents", lambda entry: ", ".join(entry.get("intents") or ()) or "all"),
    Column("encrypted", lambda entry: "yes" if entry.get("encrypt") else "no"),
)


@app.command
def allow(
    source: Source,
    target: Target,
    /,
    *,
    intent: Intents = None,
    encrypt: Annotated[bool, Parameter(negative=(), help="Only encrypted.")] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Let agents of one domain ask those of another."""
    _change(source, target, {"allow": True, "intents": intent or [], "encrypt": encrypt}, output, location)


@app.command
def forbid(
    source: Source,
    target: Target,
    /,
    *,
    intent: Intents = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Forbid it, whatever else allows it."""
    _change(source, target, {"allow": False, "intents": intent or []}, output, location)


def _change(source: str, target: str, terms: dict[str, Any], output: Output, location: HubLocation) -> None:
    hub = Hub.find(location)
    answer = hub.post("policies", "domains", body={"source": source, "target": target, **terms})
    if printing.as_data(answer, output):
        return
    may = "may" if terms["allow"] else "may not"
    what = f" for {line(', '.join(terms['intents']))}" if terms["intents"] else ""
    how = ", and only encrypted" if terms.get("encrypt") else ""
    printing.verdict(True, f"agents of {line(source)} {may} ask agents of {line(target)}{what}{how}")
    there = {agent.get("domain") or HOME for agent in hub.get("agents").get("agents") or ()}
    for domain in dict.fromkeys((source, target)):
        if domain not in (*there, ANY):
            printing.note(
                f"  no agent belongs to the domain {line(domain)} yet; known domains: {line(', '.join(sorted(there)))}"
            )
    printing.suggest("dragoman policy ls")


@app.command
def rm(source: Source, target: Target, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Remove the policy about a pair of domains."""
    answer = Hub.find(location).ask("DELETE", "policies", "domains", query={"source": source, "target": target})
    printing.done(
        answer, output, f"the policy about {line(source)} asking {line(target)} is removed", "dragoman policy ls"
    )


@app.command
def ls(*, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """List what is allowed and forbidden."""
    page = printing.Listing(Hub.find(location).get("policies", "domains"), "domains", COLUMNS, output)
    first = "dragoman contract ls" if page.items else "dragoman policy allow FROM_DOMAIN TO_DOMAIN"
    page.end(True if page.items else None, f"{page.count('pair')} of domains", first)
