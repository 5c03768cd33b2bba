"""One connection to an AMQP 0-9-1 broker, as the hub and the SDK need it: publish with a confirm, consume, declare.

It makes no second connection when the first is lost: its user sees that (`lost`) and decides. aio-pika comes with
`dragoman[amqp]`, and is imported when the first connection is made. Of it we use the part below its wrappers (aiormq),
which costs a fraction for each message and has the same connections and channels.

    channel    for
    ---------  ---------------------------------------------------------------------------------------------
    publish    messages that must not get lost: mandatory, persistent, confirmed
    consume    deliveries and their acknowledgments; answers to `amq.rabbitmq.reply-to`, which are not confirmed
    others     declarations: one that the broker refuses closes its channel
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

if TYPE_CHECKING:
    from aiormq.abc import DeliveredMessage

OPEN_SECONDS = 10.0
HEARTBEAT = 10
"""Seconds; the broker and we notice a connection that is dead after two of them."""
QUIET = ("aiormq", "aio_pika")
"""Their loggers repeat what we raise, and may quote messages."""


class Missing(Exception):
    """aio-pika is not installed."""


class Lost(Exception):
    """The connection could not be made, or is gone. The sentence has no password."""


class NotAllowed(Lost):
    """The broker refuses the user, the password or the virtual host."""


class Unfit(Exception):
    """The broker has a queue or an exchange of this name, made otherwise than we need it."""


class Outcome(enum.Enum):
    TAKEN = "taken"
    """The broker has it on its disks."""
    UNROUTABLE = "unroutable"
    """There is no such queue."""
    REFUSED = "refused"
    """The queue is full, or the broker could not keep it."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A delivery of the broker. No repr: its headers may have a credential."""

    tag: int
    key: str
    body: bytes
    headers: Mapping[str, Any]
    reply_to: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None

    def __repr__(self) -> str:
        return f"Arrival({self.tag}, {self.key!r}, {len(self.body)} bytes)"


class Place(msgspec.Struct, frozen=True):
    """A broker's address in its parts; `shown` is for people."""

    host: str
    port: int
    vhost: str
    user: str
    password: str
    secure: bool

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else f"/{self.vhost}"
        return f"{'amqps' if self.secure else 'amqp'}://{host}:{self.port}{vhost}"

    def __repr__(self) -> str:
        return f"Place({self.shown})"


def place_of(url: str) -> Place:
    """Raises ValueError with a sentence that does not repeat the address: it may have a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise ValueError("expected amqp://user:password@host:port/vhost, or amqps://…")
    if parse_qs(parts.query) or parts.fragment:
        raise ValueError("an AMQP address has no query: write amqp://user:password@host:port/vhost")
    secure = parts.scheme == "amqps"
    try:
        port = parts.port or (5671 if secure else 5672)
    except ValueError:
        raise ValueError("the port of the AMQP address is not a number up to 65535") from None
    return Place(
        host=parts.hostname,
        port=port,
        vhost=unquote(parts.path.removeprefix("/")) or "/",
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        secure=secure,
    )


class Broker:
    """One connection. `connect` makes it; `lost` is done, with a sentence, when it is over."""

    def __init__(self, place: Place, connection: Any, publishing: Any, consuming: Any) -> None:
        self.place = place
        self._connection = connection
        self._publishing = publishing
        self._consuming = consuming
        self._asking: Any = None
        """The channel of declarations, while the broker has refused none on it."""
        self._asked = asyncio.Lock()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._writing: set[asyncio.Task[Any]] = set()
        self._waiting: set[asyncio.Task[Any]] = set()
        """Tasks of others that wait for an answer of the broker. `_end` cancels each of them once."""

    @classmethod
    async def connect(cls, place: Place, *, tls: ssl.SSLContext | None, name: str) -> Broker:
        """Raises `Lost`, `NotAllowed` or `Missing`."""
        try:
            import aiormq
            from aiormq.exceptions import (
                AMQPError,
                AuthenticationError,
                ConnectionNotAllowed,
                ProbableAuthenticationError,
            )
            from yarl import URL
        except ModuleNotFoundError:
            raise Missing("AMQP needs a package that is not installed. Run: pip install 'dragoman[amqp]'") from None
        for name_of_logger in QUIET:
            logging.getLogger(name_of_logger).setLevel(logging.CRITICAL)
        url = URL.build(
            scheme="amqps" if place.secure else "amqp",
            host=place.host,
            port=place.port,
            user=place.user,
            password=place.password,
            path="/" if place.vhost == "/" else f"/{place.vhost}",
            query={"heartbeat": str(HEARTBEAT), "name": name},
        )
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                connection = await aiormq.connect(url, context=tls)
                try:
                    publishing = await connection.channel(publisher_confirms=True)
                    consuming = await connection.channel(publisher_confirms=False)
                except BaseException:
                    await connection.close()
                    raise
        except (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed) as error:
            raise NotAllowed(f"{place.shown} refuses user {place.user!r} ({type(error).__name__})") from None
        except (OSError, TimeoutError, AMQPError, ssl.SSLError) as error:
            raise Lost(f"{place.shown}: {_why(error)}") from None
        broker = cls(place, connection, publishing, consuming)
        for one in (connection, publishing, consuming):
            one.closing.add_done_callback(broker._over)
        consuming.on_consumer_cancel_callbacks.add(lambda *_: broker._end("the broker ended the consumer"))
        return broker

    def _over(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        self._end("closed" if error is None else _why(error))

    def _end(self, why: str) -> None:
        """What still waits for the connection is cancelled: on a dead one the library may wait for ever."""
        if self.lost.done():
            return
        self.lost.set_result(why)
        for task in [*self._writing, *self._waiting]:
            task.cancel()

    async def close(self) -> None:
        """Never raises."""
        self._end("closed by us")
        for task in list(self._writing):
            task.cancel()
        try:
            async with asyncio.timeout(2):
                await self._connection.close()
        except Exception as error:
            logging.getLogger("dragoman.amqp").debug("close: %s", _why(error))

    # -- declarations

    async def declare_exchange(self, name: str) -> None:
        await self._declaring("exchange", name, lambda channel: channel.exchange_declare(
            exchange=name, exchange_type="topic", durable=True))  # fmt: skip

    async def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Make the queue, or see that it is as we need it; gives how many consumers it has."""
        found = await self._declaring("queue", name, lambda channel: channel.queue_declare(
            queue=name, durable=True, arguments=dict(arguments)))  # fmt: skip
        return int(found.consumer_count)

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        await self._ask(lambda channel: channel.queue_bind(queue=queue, exchange=exchange, routing_key=key))

    async def _declaring(self, what: str, name: str, declare: Callable[[Any], Any]) -> Any:
        from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed

        try:
            return await self._ask(declare)
        except ChannelPreconditionFailed:
            need = "a durable topic exchange" if what == "exchange" else "a durable quorum queue (x-queue-type: quorum)"
            raise Unfit(
                f"the {what} {name} exists and is not {need} without further arguments; delete it, and put limits into"
                " a policy of the broker"
            ) from None
        except (ChannelAccessRefused, ChannelLockedResource) as error:
            user = self.place.user
            raise Unfit(f"the broker does not let user {user!r} have the {what} {name} ({_why(error)})") from None

    async def _ask(self, ask: Callable[[Any], Any]) -> Any:
        """The broker closes the channel of a request that it refuses: then the next request opens another."""
        from aiormq.exceptions import ChannelClosed

        async with self._asked:
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    if self._asking is None:
                        self._asking = await self._connection.channel(publisher_confirms=False)
                    return await ask(self._asking)
            except ChannelClosed:
                self._asking = None
                raise
            except asyncio.CancelledError:
                self._asking = None
                raise self._lost_or_cancelled(_current()) from None
            except Exception as error:
                self._asking = None
                raise Lost(_why(error)) from None

    def _lost_or_cancelled(self, task: asyncio.Task[Any]) -> BaseException:
        """We, and the library, cancel what waits for a connection that is lost; that of others goes on."""
        if task in self._waiting and self.lost.done() and task.cancelling():
            task.uncancel()
        if self.lost.done() and not task.cancelling():
            return Lost(self.lost.result())
        return asyncio.CancelledError()

    # -- out

    async def publish(
        self,
        queue: str,
        body: bytes,
        *,
        id: str,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        reply_to: str | None = None,
        milliseconds: int | None = None,
        type: str | None = None,
    ) -> Outcome:
        """Returns when the broker has the message or says that it does not. Raises `Lost` if it can no longer say.
        `id` must be no other's that is on its way. `milliseconds`: the broker drops it if nobody takes it by then."""
        from aiormq.exceptions import DeliveryError, PublishError
        from pamqp.commands import Basic

        if self.lost.done():
            raise Lost(self.lost.result())
        waiting = _current()
        self._waiting.add(waiting)
        properties = Basic.Properties(
            content_type="application/json",
            delivery_mode=2,
            headers=dict(headers) if headers else None,
            reply_to=reply_to,
            expiration=None if milliseconds is None else str(milliseconds),
            message_id=id,
            message_type=type,
        )
        try:
            found = await self._publishing.basic_publish(
                body, exchange=exchange, routing_key=queue, properties=properties, mandatory=True, wait=False
            )
        except PublishError:
            return Outcome.UNROUTABLE
        except DeliveryError:
            return Outcome.REFUSED
        except asyncio.CancelledError:
            raise self._lost_or_cancelled(waiting) from None
        except Exception as error:
            raise Lost(_why(error)) from None
        finally:
            self._waiting.discard(waiting)
        if found is not None and not isinstance(found, Basic.Ack):
            return Outcome.UNROUTABLE  # it came back
        return Outcome.TAKEN

    def reply(self, reply_to: str, body: bytes, correlation_id: str | None = None) -> None:
        """Answer to a sender that waits on this connection now; nobody knows whether it arrives."""
        from pamqp.commands import Basic

        properties = Basic.Properties(content_type="application/json", delivery_mode=1, correlation_id=correlation_id)
        self._write(self._consuming.basic_publish(body, routing_key=reply_to, properties=properties, wait=False))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._write(self._consuming.basic_ack(tag, multiple=multiple, wait=False))

    def _write(self, writing: Any) -> None:
        task = asyncio.ensure_future(writing)
        self._writing.add(task)
        task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # `lost` says it

    # -- in

    async def consume(self, queue: str, receive: Callable[[Arrival], None], *, prefetch: int) -> str:
        """Call `receive` with each delivery, in order, each of which must be acknowledged; gives the tag by which to
        cancel."""

        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._consuming.basic_qos(prefetch_count=prefetch)
                consuming = await self._consuming.basic_consume(queue, _receiver(receive))
        except Exception as error:
            raise Lost(_why(error)) from None
        return str(consuming.consumer_tag)

    async def consume_replies(self, queue: str, receive: Callable[[Arrival], None]) -> None:
        """Answers to what this connection publishes; the broker wants both on the same channel."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._publishing.basic_consume(queue, _receiver(receive), no_ack=True)
        except Exception as error:
            raise Lost(_why(error)) from None

    async def cancel(self, consumer: str) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._consuming.basic_cancel(consumer)
        except Exception as error:
            raise Lost(_why(error)) from None


def _current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _receiver(receive: Callable[[Arrival], None]) -> Callable[[DeliveredMessage], Awaitable[None]]:
    async def arrived(message: DeliveredMessage) -> None:
        properties = message.header.properties
        receive(
            Arrival(
                tag=int(message.delivery_tag or 0),
                key=str(message.routing_key or ""),
                body=bytes(message.body),
                headers=properties.headers or {},
                reply_to=properties.reply_to,
                correlation_id=properties.correlation_id,
                message_id=properties.message_id,
            )
        )

    return arrived


def _why(error: BaseException) -> str:
    """What it says, or what caused it says; at last its kind."""
    text = " ".join(str(error).split())
    if isinstance(error, TimeoutError) and not text:
        return f"no answer within {OPEN_SECONDS:g} s"
    cause = error.__cause__ or error.__context__
    if not text and cause is not None:
        return _why(cause)
    return text[:200] or type(error).__name__
