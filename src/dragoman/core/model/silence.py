"""How long an agent may be silent about a task before the hub takes the task back, and which rule decides that.

    rule        holds for                                                runs out
    ----------  -------------------------------------------------------  ------------------------------------------
    vouched     a task whose link vouches for its agent (a stream, a     never; only the deadline ends the task
                child process, some WebSockets)
    link_lost   a task without a sign of life since its link broke       `grace` after the link broke
    hub_stopped a task of an agent that was connected when the hub       `idle_limit` of the rules after the start
                stopped, without a sign of life since
    idle        every task that an agent has                             the task's `idle_limit` after the last sign
    deadline    every task                                               at its deadline

The rule that runs out first decides. `clock` acts on it, and people read it in `task why`: both call `rule_of`, so
people read what happens.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.tasks import Task
from dragoman.core.rules import Rules


class Silence(enum.StrEnum):
    VOUCHED = "vouched"
    LINK_LOST = "link_lost"
    HUB_STOPPED = "hub_stopped"
    IDLE = "idle"
    DEADLINE = "deadline"


class Watched(NamedTuple):
    """What the running hub knows of the agent that has a task. `link` is the open link over which the agent got the
    task or last reported about it; `is_linked`: any link to the agent is open. `seen_at` is the last sign of life of an
    agent that converses."""

    rules: Rules
    serving_since: Instant
    agent: Agent | None
    link: Link | None
    is_linked: bool
    seen_at: Instant | None


class Rule(NamedTuple):
    """`at` is when it runs out, `last_sign` the agent's last sign of life about the task, or the start of the hub."""

    silence: Silence
    at: Instant
    last_sign: Instant


def rule_of(task: Task, watched: Watched, now: Instant) -> Rule:
    """The rule that ends an agent's silence about a task. Of several that ran out meanwhile, the one that says most
    about the cause."""
    sign = Instant(max(task.timing.last_sign_at or task.created_at, watched.serving_since, watched.seen_at or 0))
    if watched.link is not None and watched.link.vouches:
        return Rule(Silence.VOUCHED, task.timing.deadline, sign)
    ends = (
        (Silence.LINK_LOST, lost_by(task, watched)),
        (Silence.HUB_STOPPED, back_by(task, watched)),
        (Silence.IDLE, Instant(sign + task.timing.idle_limit)),
        (Silence.DEADLINE, task.timing.deadline),
    )
    rules = [Rule(silence, at, sign) for silence, at in ends if at is not None]
    return next((rule for rule in rules if rule.at <= now), None) or min(rules, key=lambda rule: rule.at)


def lost_by(task: Task, watched: Watched) -> Instant | None:
    """By when an agent whose link broke must show a sign of life; None if it did. The time while the hub is down does
    not count."""
    if task.timing.lost_at is None or task.timing.lost_at < (task.timing.last_sign_at or 0):
        return None
    if task.timing.lost_at < watched.serving_since:
        return Instant(watched.serving_since + watched.rules.idle_limit)
    return Instant(task.timing.lost_at + watched.rules.grace)


def back_by(task: Task, watched: Watched) -> Instant | None:
    """By when an agent that was connected when the hub stopped must report about its work. None if it did; if it
    converses and was seen since; or if it polls or has a callback, and so need not be connected at all.

    A new connection is no answer: it may be a new process, which knows nothing of the old one's work.
    """
    agent = watched.agent
    if agent is None or not agent.connected or task.attempt.session is None:
        return None
    if agent.callback_url is not None and watched.is_linked:
        return None  # the hub calls the agent
    seen = max(task.timing.last_sign_at or task.created_at, watched.seen_at or 0)
    return Instant(watched.serving_since + watched.rules.idle_limit) if seen < watched.serving_since else None
