"""What an agent sends about itself: heartbeats, status reports, error reports; and its direct messages to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from dragoman.protocols.agentmsg import errors, routing
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.codec import SENDER
from dragoman.protocols.agentmsg.records import (
    AgentState,
    AgentStatus,
    ErrorType,
    HealthMetrics,
    Priority,
    Record,
    RecoveryAttempt,
    ResourceUsage,
    RetryOverrides,
)
from dragoman.protocols.agentmsg.types import HUB
from dragoman.sdk.conversation.peer_requests import PeerRequests
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.links import Introduction
from dragoman.sdk.messages import OutgoingMessage
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.outcome import error_text
from dragoman.sdk.work.task_runner import TaskRunner


class StatusReporter:
    def __init__(self, who: Introduction, peer_requests: PeerRequests, runner: TaskRunner, runtime: Runtime) -> None:
        self._who = who
        self._peer_requests = peer_requests
        self._runner = runner
        self._runtime = runtime

    def beat(self) -> None:
        self._runner.stats.beaten_at = self._runtime.now()
        beat = agentmsg.Heartbeat(agent_id=self._who.agent_id, state=self._state)
        self._peer_requests.send_once(self._peer_requests.message(beat, HUB))

    def tell_status(self, **given: Any) -> None:
        """What the agent reports of itself holds for later reports, too, unless it has no JSON form."""
        stats = self._runner.stats
        before = dict(stats.reported)
        stats.reported.update((name, value) for name, value in given.items() if value is not None)
        stats.beaten_at = self._runtime.now()
        try:
            message = self._peer_requests.message(self.status(), HUB)
        except (TypeError, ValueError):
            stats.reported = before
            raise
        self._peer_requests.send_once(message)

    def status(self) -> agentmsg.StatusUpdate:
        """What the library counts of the agent's work, and what the agent reported of itself."""
        stats = self._runner.stats
        reported = stats.reported
        available = reported.get("next_available")
        if isinstance(available, int | float | timedelta):
            span = available if isinstance(available, timedelta) else timedelta(seconds=available)
            available = self._runtime.now() + span
        return agentmsg.StatusUpdate(
            agent_id=self._who.agent_id,
            status=AgentStatus(
                state=self._state,
                capability_level=reported.get("capability_level", 100),
                error_rate=stats.error_rate,
                avg_response_time_ms=round(stats.average_ms, 1),
                last_heartbeat=stats.beaten_at,
            ),
            current_tasks=tuple(self._runner.tasks),
            resource_usage=ResourceUsage(
                tokens_used=reported.get("tokens_used", stats.used["tokens_used"]),
                tokens_remaining=reported.get("tokens_remaining", 0),
                cost_usd=reported.get("cost_usd", stats.used["cost_usd"]),
                cpu_usage=reported.get("cpu_usage", stats.cpu_percent()),
                memory_usage=reported.get("memory_usage", stats.memory_percent()),
            ),
            health_metrics=HealthMetrics(
                uptime_seconds=round(stats.uptime, 1),
                success_rate=1 - stats.error_rate,
                avg_latency_ms=round(stats.average_ms, 1),
                error_count=stats.failed,
                last_error=stats.last_error,
            ),
            next_available=available,
        )

    @property
    def _state(self) -> AgentState:
        reported = self._runner.stats.reported.get("state")
        if reported is not None:
            return AgentState(reported)
        return AgentState.BUSY if self._runner.tasks else AgentState.IDLE

    async def report_error(
        self,
        error: BaseException | str,
        *,
        error_type: str,
        severity: str | None,
        task_id: str | None,
        to: str | None,
        details: Mapping[str, Any] | None,
        attempts: Sequence[Mapping[str, Any]],
        actions: Sequence[str],
    ) -> None:
        self._peer_requests.require("report an error", "")
        report = errors.new_report(
            ErrorType(error_type),
            error if isinstance(error, str) else error_text(error),
            error_id=self._runtime.mint(),
            agent_id=self._who.agent_id,
            task_id=task_id,
            details=msgspec.to_builtins(dict(details or {})),
        )
        report = msgspec.structs.replace(
            report,
            severity=severity or report.severity,
            recovery_attempts=tuple(self._attempt(number, one) for number, one in enumerate(attempts, start=1)),
            suggested_actions=tuple(actions) or report.suggested_actions,
        )
        self._runner.stats.last_error = self._runtime.now()
        about = self._runner.tasks.get(task_id or "")
        await self._peer_requests.deliver(self._peer_requests.message(report, to or HUB, about))

    def _attempt(self, number: int, given: Mapping[str, Any]) -> RecoveryAttempt:
        known = {"attempt_number": number, "timestamp": self._runtime.now(), "outcome": "failure", "details": ""}
        return msgspec.convert({**known, **given}, RecoveryAttempt)

    # --- direct messages ---

    async def tell(
        self,
        to: str,
        payload: Record | Mapping[str, Any],
        type: str | None,
        priority: str | None,
        ttl: float | None,
        retry: Mapping[str, Any] | None = None,
    ) -> None:
        """Returns when the hub has the message, if it is kept; others are sent once."""
        self._peer_requests.require("tell another agent something", "")
        record, beside = self._record(payload, type)
        message = self._peer_requests.message(
            record,
            to,
            beside=beside,
            priority=priority,
            ttl_ms=None if ttl is None else ttl * 1000,
            retry=None if retry is None else _retry(retry),
        )
        if _is_kept(message):
            await self._peer_requests.deliver(message)
        else:
            self._peer_requests.send_once(message)

    def _record(self, payload: Record | Mapping[str, Any], type: str | None) -> tuple[Record, dict[str, Any]]:
        """The payload in the protocol's form, and the fields that it does not have."""
        if isinstance(payload, Record):
            return payload, {}
        if type is None:  # a note of the user's own: it goes beside a status report
            return self.status(), dict(payload)
        body = agentmsg.BODIES[agentmsg.MessageType(type)][0]
        known: dict[str, Any] = {}
        copy = SENDER.get(body)
        if copy is not None and "." not in copy:
            known[copy] = self._who.agent_id
        try:
            record = msgspec.convert({**known, **payload}, body)
        except msgspec.ValidationError as error:
            raise Misconfigured(f"{type} cannot be made of this: {error}") from None
        return record, {name: value for name, value in payload.items() if name not in body.__struct_fields__}


def _retry(given: Mapping[str, Any]) -> RetryOverrides:
    if unknown := sorted(given.keys() - set(RetryOverrides.__struct_fields__)):
        known = ", ".join(RetryOverrides.__struct_fields__)
        raise Misconfigured(f"retry has no {unknown[0]}; it has {known}")
    try:
        return msgspec.convert(dict(given), RetryOverrides)
    except msgspec.ValidationError as error:
        raise Misconfigured(f"retry cannot be so: {error}") from None


def _is_kept(message: OutgoingMessage) -> bool:
    own = Priority(message.priority) if message.priority else Priority.LOW
    return (agentmsg.TYPE_OF[type(message.payload)], own) in routing.KEPT
