"""`dragoman key`: the keys with which the hub signs tokens (a2acp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.options import HERE, Output, Reach
from dragoman.cli.printing import Column, Item, col

app = App(name="key", help="The keys that sign tokens: ls, rotate.")

USES = {"signs": "signs", "verifies": "verifies", "shared": "shared: whoever has it signs"}

COLUMNS = (
    col("key", "kid"),
    col("algorithm"),
    Column("use", lambda key: USES.get(str(key.get("use")), key.get("use"))),
    col("since", "created_at"),
    col("verifies until", "verifies_until", rare=True),
)


@app.command
def ls(*, output: Output = "table", reach: Reach = HERE) -> None:
    """List the keys: the one that signs, and those whose tokens are still good."""
    found = printing.listing(Hub.find(reach).get("keys"), "keys", COLUMNS, output)
    if output == "table":
        _told(found)
        printing.following("dragoman agent ls --protocol a2acp")


@app.command
def rotate(
    *,
    distrust: Annotated[
        bool,
        Parameter(negative=(), help="The old keys may have been stolen: every token out there is void at once."),
    ] = False,
    output: Output = "table",
    reach: Reach = HERE,
) -> None:
    """Sign with a new key. The old one verifies until the tokens that it signed are over."""
    answer = Hub.find(reach).post("keys", "rotate", body={"distrust": True} if distrust else {})
    found = printing.listing(answer, "keys", COLUMNS, output)
    if output != "table":
        return
    _told(found)
    if distrust:
        printing.words("  what older keys signed is void; agents fetch new tokens with their secrets")
    printing.following("dragoman key ls", "dragoman audit query --principal admin")


def _told(found: Sequence[Item]) -> None:
    old = sum(key.get("use") == "verifies" for key in found)
    signing = next((line(key.get("kid")) for key in found if key.get("use") == "signs"), "no key")
    printing.verdict(
        True,
        f"{signing} signs"
        + (f", and {printing.count(old, 'older key')} still {'verifies' if old == 1 else 'verify'}" if old else ""),
    )
