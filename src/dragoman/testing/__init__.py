"""A hub for the tests of your agents: real, in process, with a clock of its own, a scripted person and faults.

    def test_a_person_says_no(hub):                  # the fixture comes with the package
        hub.add(agent, protocol="coven")
        hub.human.answers("no")
        with pytest.raises(TaskFailed, match="declined"):
            hub.call("deployer", "run_playbook", playbook="site.yml")

See `docs/howto/testing.md`. This package stands at the top, beside `cli`: it wires nothing itself, the hub is that of
`app/wiring.py`.

    plugin       the pytest fixture; loaded in every run of pytest, so it imports nothing until it is used
    hub          what a test uses: plain, blocking methods
    environment  what runs on the loop of the hub's thread: the hub, agents, clients, their connections
    scheduler    moves the clock to the next timer that is due, and waits for a task
    clock        a clock that only the test moves; human: a scripted person; faults: lost messages, broken connections
    loop         the thread, and whether anything happens on it

Names are loaded when they are first used, as those of `dragoman` itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.testing.clock import Clock
    from dragoman.testing.environment import Pass
    from dragoman.testing.faults import Faults
    from dragoman.testing.hub import Hub
    from dragoman.testing.human import Human
    from dragoman.testing.loop import Misused, Stuck

__all__ = ["Clock", "Faults", "Hub", "Human", "Misused", "Pass", "Stuck"]

_HOMES = {
    "Clock": "clock",
    "Faults": "faults",
    "Hub": "hub",
    "Human": "human",
    "Misused": "loop",
    "Pass": "environment",
    "Stuck": "loop",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
