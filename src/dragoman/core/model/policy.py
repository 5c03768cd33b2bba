"""The policy: one shared entity that the hub itself obeys, from the commit that changed it.

    field                    what it does
    -----------------------  --------------------------------------------------------------------------------------
    enabled_chains           a task whose constraints name another `chain` is refused
    risk_thresholds          `risk` from `low` on is marked; from `high` on a person must approve before work begins
    budget_limits            USD per task, per agent, in total (`core.budgets.budget`)
    circuit_breaker_config   of agents that converse: so many failures in a row open it; a work order without a sign of
                             life for `timeout_ms` is one; after `reset_timeout_ms` the agent gets a health check
    domains                  which domains may ask which (`core.agreements.domain_policy`)
    retry_config             how long agents that converse have for an acknowledgment, and how often a work order or a
                             notice is sent to them (`model.deliveries`); what it leaves out is as in the settings

It exists from the start, as version 1, with the defaults below (agentmsg-D11) and the budgets of the hub's settings.
JSON has no infinity, and the document wants numbers: no limit is shown as `UNLIMITED`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from dragoman.core.ids import MILLISECOND
from dragoman.core.model.deliveries import Backoff
from dragoman.core.rules import Rules

NAME = "policy"
DOMAINS = "domains"
"""The field with the domain policies."""
ANY = "*"
"""Any domain."""
UNLIMITED = 1e15

CHAINS = ("A", "B", "C")
RISK = {"low": 0.25, "high": 0.60}
BREAKER = {"error_threshold": 3, "timeout_ms": 30_000, "reset_timeout_ms": 300_000}


class DomainPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether one domain may ask another; no intents means all of them."""

    source: str
    target: str
    allow: bool = True
    intents: tuple[str, ...] = ()
    encrypt: bool = False

    def concerns(self, source: str, intent: str) -> bool:
        return self.source in (ANY, source) and (not self.intents or intent in self.intents)

    def covers(self, source: str, target: str, intent: str) -> bool:
        return self.target in (ANY, target) and self.concerns(source, intent)


class Policy(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The policy as decisions read it. A limit of None is none."""

    chains: tuple[str, ...]
    risk_low: float
    risk_high: float
    per_task: float | None
    per_agent: float | None
    total: float | None
    breaker_threshold: int
    breaker_timeout: int
    breaker_pause: int
    limits: bool
    """Whether there are any limits."""
    retry: Backoff | None = None
    domain_policies: tuple[DomainPolicy, ...] = ()


def default_value(rules: Rules) -> dict[str, Any]:
    """The value in the registry before its first change."""
    return {
        "version": "1",
        "enabled_chains": list(CHAINS),
        "risk_thresholds": dict(RISK),
        "budget_limits": {
            "per_task": _shown(rules.budget_per_task),
            "per_agent": _shown(rules.budget_per_agent),
            "total": _shown(rules.budget_total),
        },
        "circuit_breaker_config": dict(BREAKER),
    }


def completed(value: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """A policy with every field that the document requires: a removed field has its default."""
    first = default_value(rules)
    whole = {name: field for name, field in first.items() if name not in value} | value
    for name, fields in first.items():
        if isinstance(fields, dict) and isinstance(whole[name], dict):
            whole[name] = fields | whole[name]
    return whole


def _shown(limit: float | None) -> float:
    return UNLIMITED if limit is None else limit


def limit_in(value: dict[str, Any], name: str) -> float | None:
    limit = value.get(name)
    return None if limit is None or limit >= UNLIMITED else float(limit)


def read(value: dict[str, Any]) -> Policy:
    """A policy from a value of the right shape. What it leaves out is as in the document."""
    risk = RISK | value.get("risk_thresholds", {})
    budget = value.get("budget_limits", {})
    breaker = BREAKER | value.get("circuit_breaker_config", {})
    per_task, per_agent, total = (limit_in(budget, name) for name in ("per_task", "per_agent", "total"))
    return Policy(
        chains=tuple(value.get("enabled_chains", CHAINS)),
        risk_low=risk["low"],
        risk_high=risk["high"],
        per_task=per_task,
        per_agent=per_agent,
        total=total,
        breaker_threshold=int(breaker["error_threshold"]),
        breaker_timeout=int(breaker["timeout_ms"] * MILLISECOND),
        breaker_pause=int(breaker["reset_timeout_ms"] * MILLISECOND),
        limits=any(limit is not None for limit in (per_task, per_agent, total)),
        retry=backoff_in(value.get("retry_config")),
        domain_policies=domain_policies_in(value),
    )


def domain_policies_in(value: dict[str, Any]) -> tuple[DomainPolicy, ...]:
    try:
        return msgspec.convert(value.get(DOMAINS, ()), tuple[DomainPolicy, ...])
    except msgspec.ValidationError:
        return ()  # written by hand, and wrongly: it allows nothing


def backoff_in(config: dict[str, Any] | None) -> Backoff | None:
    """A RetryConfig, or as much of it as there is."""
    if not config:
        return None
    base, most = config.get("base_delay_ms"), config.get("max_delay_ms")
    return Backoff(
        base=None if base is None else base * MILLISECOND,
        most=None if most is None else most * MILLISECOND,
        factor=config.get("backoff_multiplier"),
        jitter=config.get("jitter"),
        attempts=config.get("max_attempts"),
    )


@lru_cache(8)
def default(rules: Rules) -> Policy:
    return read(default_value(rules))
