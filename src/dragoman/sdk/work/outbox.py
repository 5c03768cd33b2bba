"""Messages that must reach the hub: kept until the hub confirms them, and sent again over every new link.

Where the hub refused a message about a task for now, that task is *held*: messages about it are kept and not sent,
until `send_again` sends all of them in order. So nothing overtakes the refused message.

Mostly the first message about work acknowledges it (chiffon-D5). Then the receipt of new work is only sent if no
message went out about it for a moment: short work costs the hub one message, and one commit, less.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.sdk.links import Link, ProtocolCapabilities
from dragoman.sdk.messages import Outbound, Question, Report
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.running_task import RunningTask

ACK_DELAY = 0.05
MOST_PASSING = 1024
"""Reports that are sent once (bare progress) and may still be refused."""


class Outbox:
    """The messages to the hub, with or without a link at the moment."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._link: Link | None = None
        self._kept: dict[str, Outbound] = {}
        self._passing: dict[str, None] = {}
        """Of these, the ones that are sent once: they are kept while their link is up, so that they can be sent again
        in their place. Not every hub confirms them; but it has them once it confirms a later one."""
        self._held: set[str] = set()
        """Tasks with a message that was refused for now."""
        self._silent: list[RunningTask] = []
        self.protocol_capabilities = ProtocolCapabilities(name="no link")
        """Those of the last link: there is no task without one."""

    # --- links ---

    def attach(self, link: Link) -> None:
        """Use a new link: send everything that the hub has not confirmed again, in order."""
        self._link, self.protocol_capabilities = link, link.protocol_capabilities
        self._held.clear()
        for message in self._kept.values():
            link.send(message)

    def detach(self) -> None:
        """The link is gone. Receipts belong to it: the hub delivers again what was not acknowledged."""
        self._link = None
        for id in self._passing:
            del self._kept[id]
        self._passing.clear()
        for task in self._silent:
            task.receipt = None
        self._silent.clear()

    # --- what the hub must get ---

    def keep(self, message: Outbound) -> None:
        """Send it over the next link."""
        self._kept[message.id] = message

    def enqueue(self, message: Outbound) -> None:
        """Send it, and keep it until the hub has it."""
        self._kept[message.id] = message
        self._send(message)

    def _send(self, message: Outbound) -> None:
        if self._link is not None and message.correlation.task_id not in self._held:
            self._link.send(message)

    def settle(self, id: str) -> Outbound | None:
        """The hub has it, or it is no longer wanted."""
        settled = self._kept.get(id)
        if settled is not None:
            self._forget_before(id)
            self._forget(id)
        return settled

    def _forget_before(self, id: str) -> None:
        """The hub has decided this one, and so everything before it about the same task."""
        if not self._passing:
            return
        task_id, earlier = self._kept[id].correlation.task_id, []
        for other, message in self._kept.items():
            if other == id:
                break
            if other in self._passing and message.correlation.task_id == task_id:
                earlier.append(other)
        for other in earlier:
            self._forget(other)

    def _forget(self, id: str) -> None:
        self._passing.pop(id, None)
        del self._kept[id]

    def hold(self, task_id: str, message_id: str | None = None) -> bool:
        """The hub refused a message about the task for now: this one, where the refusal names it. False if the task is
        held already."""
        if task_id in self._held:
            return False
        if message_id in self._kept:
            self._forget_before(message_id)
        self._held.add(task_id)
        return True

    def send_again(self, task_id: str) -> None:
        """Send all messages about the task that the hub has not confirmed, in order."""
        if task_id in self._held:  # else all of them went over another link since
            self._held.discard(task_id)
            for message in self.about(task_id=task_id):
                self._send(message)

    def about(self, *, task_id: str | None = None, request_id: str | None = None) -> Iterator[Outbound]:
        """The kept messages about a task or a request."""
        for message in list(self._kept.values()):
            if task_id in (None, message.correlation.task_id) and request_id in (None, message.correlation.request_id):
                yield message

    @property
    def owes(self) -> bool:
        """Whether the hub has yet to confirm a message. A question does not count: where its answer is the only
        receipt, it is kept until a person has answered."""
        return any(
            (self._link is None or type(message) is not Question) and message.id not in self._passing
            for message in self._kept.values()
        )

    # --- messages that are sent once ---

    def send_once(self, message: Outbound) -> None:
        """Send it if there is a link; never again."""
        if self._link is None:
            return
        if self.protocol_capabilities.refuses_each and type(message) is Report:
            self._kept[message.id] = message
            self._passing[message.id] = None
            if len(self._passing) > MOST_PASSING:
                self._forget(next(iter(self._passing)))
        self._send(message)

    async def drain(self) -> None:
        if self._link is not None:
            await self._link.drain()

    # --- acknowledgments ---

    def acknowledge(self, receipt: str | None) -> None:
        if receipt is not None and self._link is not None:
            self._link.acknowledge(receipt)

    def acknowledge_soon(self, task: RunningTask) -> None:
        """Acknowledge the work in a moment, unless a message about the task does so before."""
        if task.receipt is not None:
            if not self._silent:
                self._runtime.later(ACK_DELAY, self._acknowledge_silent)
            self._silent.append(task)

    def acknowledge_by_message(self, task: RunningTask) -> None:
        """A message about the task is sent, which acknowledges the work."""
        if not self.protocol_capabilities.words_are_receipts:
            self.acknowledge(task.receipt)
        task.receipt = None

    def _acknowledge_silent(self) -> None:
        silent, self._silent = self._silent, []
        for task in silent:
            self.acknowledge(task.receipt)
            task.receipt = None
