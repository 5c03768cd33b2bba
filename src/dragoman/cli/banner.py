"""What a person reads when the hub has started."""

from __future__ import annotations

import shlex
from pathlib import Path

from dragoman.app.program import program
from dragoman.cli import escaping

TRY = "task ls"


def banner(
    *, http: str, data: str | Path, token: str | None = None, next: str | None = None, demo: bool = False
) -> str:
    """The facts: where it listens, where it keeps everything, and one command to try (`next`, without our name).

    With demo agents there is nobody to try it with yet: who they are and what to try is printed when they have come
    (`app.demo.words`), and only there.

    With a `token` the page opens without asking for it: the part behind the # never leaves the browser.
    """
    following = f"{program()} {next or TRY}"
    if Path(data) != Path(".dragoman") and "--data" not in following:
        following += f" --data {shlex.quote(str(data))}"
    lines = [
        "",
        f"  dragoman serves at  {http}",
        *([f"  its page            {http}/#token={token}"] if token else []),
        f"  everything is in    {escaping.line(data)}  (readable by you only; a restart loses nothing)",
        "  demo agents         are about to come; leave them out with --no-demo"
        if demo
        else f"  try next            {escaping.line(following)}",
        "  stop with           Ctrl-C: work under way is kept and goes on at the next start",
        "",
    ]
    return "\n".join(lines)
