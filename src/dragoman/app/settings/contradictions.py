"""What each value allows alone, but not together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from dragoman.app.settings.model import Origin, Settings, value_of
from dragoman.core.ids import DAY, SECOND


def contradictions(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    ids = [agent.id for agent in settings.agents]
    for id in sorted({id for id in ids if ids.count(id) > 1}):
        yield f"agents ({origins['agents']}): {id!r} stands there twice: give each agent an id of its own."
    yield from _unsafe(settings, origins)
    rules = settings.rules
    for name in ("retry_delays_seconds", "unreachable_delays_seconds"):
        if not getattr(rules, name):
            origin = origins[f"rules.{name}"]
            yield f"rules.{name} ({origin}) is empty: write one delay for each attempt, at least one."
    horizon = sum(rules.retry_delays_seconds) + rules.idle_seconds * len(rules.retry_delays_seconds)
    if rules.request_memory_seconds < horizon:
        yield (
            f"rules.request_memory_seconds ({origins['rules.request_memory_seconds']}) is"
            f" {rules.request_memory_seconds:g}, but attempts may be repeated for {horizon:g} s: a repeated request"
            " would be done twice (all-D5). Raise it."
        )
    if 0 < rules.keep_finished_days * DAY < rules.request_memory_seconds * SECOND:
        yield (
            f"rules.keep_finished_days ({origins['rules.keep_finished_days']}) is {rules.keep_finished_days:g}, but a"
            f" finished request answers for its id for {rules.request_memory_seconds:g} s, and is forgotten with its"
            " task. Raise it, or lower rules.request_memory_seconds."
        )


def _unsafe(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    """TLS by halves, and plain ports where others can reach them (a2acp-D18)."""
    tls, coven, server = settings.tls, settings.coven, settings.server
    for one, other in (("tls.certificate", "tls.key"), ("coven.tls_certificate", "coven.tls_key")):
        for has, lacks in ((one, other), (other, one)):
            if value_of(settings, has) and not value_of(settings, lacks):
                yield f"{has} ({origins[has]}) is of no use alone: set {lacks} as well."
    if tls.client_ca and not (tls.certificate and tls.key):
        yield f"tls.client_ca ({origins['tls.client_ca']}) needs TLS: set tls.certificate and tls.key as well."
    if tls.clients == "required" and not tls.client_ca:
        yield f"tls.clients ({origins['tls.clients']}) is required, but nobody signs them: set tls.client_ca."
    if server.allow_plain or is_loopback(server.host):
        return
    plain = [] if tls.certificate else ["HTTP"]
    if coven.enabled and not (tls.certificate or coven.tls_certificate):
        plain.append("gRPC")
    if plain:
        yield (
            f"server.host ({origins['server.host']}) is {server.host}, which others can reach, and"
            f" {' and '.join(plain)} would be spoken without TLS. Make a certificate (dragoman cert --host NAME), set"
            " tls.certificate and tls.key; or, behind a proxy that speaks TLS, set server.allow_plain = true."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
