"""A hub for the tests of your agents: real, in process, with a clock of its own, a scripted person and faults.

    def test_a_person_says_no(hub):                  # the fixture comes with the package
        hub.add(agent, protocol="coven")
        hub.human.answers("no")
        with pytest.raises(TaskFailed, match="declined"):
            hub.call("deployer", "run_playbook", playbook="site.yml")

`docs/howto/testing.md` tells it whole. This package stands at the top, beside `cli`: it wires nothing itself, the hub
is the one of `app/wiring.py`.

    plugin    the pytest fixture; loaded in every run of pytest, so it imports nothing until it is used
    hub       what a test has in hand: plain, blocking methods
    stage     what lives on the loop of the hub's thread: hub, agents, clients, their wires
    flow      how time passes, and how one waits for a task
    clock     time that is told to pass; human, faults: the other two hands of a test
    loop      the thread, and whether anything happens on it
    relay     one agent's wire, which can be cut

Names are loaded when they are first used, as those of `dragoman` itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.testing.clock import Clock
    from dragoman.testing.errors import Misused, Stuck
    from dragoman.testing.faults import Faults
    from dragoman.testing.hub import Hub
    from dragoman.testing.human import Human
    from dragoman.testing.stage import Pass

__all__ = ["Clock", "Faults", "Hub", "Human", "Misused", "Pass", "Stuck"]

_HOMES = {
    "Clock": "clock",
    "Faults": "faults",
    "Hub": "hub",
    "Human": "human",
    "Misused": "errors",
    "Pass": "stage",
    "Stuck": "errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
