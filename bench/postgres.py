"""What a store in PostgreSQL costs the hub: the same hub over SQLite, over PostgreSQL, and PostgreSQL alone.

    store-sqlite      durable round trips of chiffon over WebSocket, the hub's program with a store in SQLite
    store-postgres    the same with a store in PostgreSQL on the same disk (a private server, with fsync)
    commits-postgres  the commits of such a run, replayed: the same rows in the same units, and nothing else

CPU is the hub's, without PostgreSQL's; of SQLite with the writer process, and without it (`main`). `loads` are
statements that asked for rows of decisions, for each round trip.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from bench import procs
from bench.figures import Figure, Settings, median_run
from bench.hub import SIDES, Bystanders
from bench.load import measure as load

LEVELS = (32, 256)
REPLAYED = 32


def measure(settings: Settings) -> Iterable[Figure]:
    from tests.support.postgres import Server, private_directory

    server = Server(private_directory("bench"), durable=True)
    try:
        server.start()
        for in_flight in LEVELS:
            runs: dict[str, list[Figure]] = {"store-sqlite": [], "store-postgres": []}
            for number in range(settings.repeats):  # in turns, so that a busy moment of the machine meets both
                for suite, found in runs.items():
                    url = "" if suite == "store-sqlite" else server.create_database(f"b{in_flight}_{number}")
                    found.append(_round_trips(settings, suite, in_flight, url))
            for found in runs.values():
                yield median_run(found)
        with tempfile.TemporaryDirectory() as scratch:
            record = Path(scratch, "units")
            _round_trips(settings, "recording", REPLAYED, server.create_database("recorded"), str(record))
            runs_alone = []
            for number in range(settings.repeats):
                url = server.create_database(f"replayed_{number}")
                answer = procs.ask("bench.postgres", {"url": url, "record": str(record)}, timeout=120)
                runs_alone.append(msgspec.convert(answer, Figure))
            yield median_run(runs_alone)
    finally:
        server.remove()


@contextmanager
def _hub(settings: Settings, url: str, record: str) -> Iterator[tuple[procs.Proc, dict[str, Any], Path]]:
    place = Path(settings.data or procs.ROOT / "bench" / "results")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=place) as scratch:
        order = {"data": scratch, "url": url, "record": record}
        with procs.python("bench.postgres", msgspec.json.encode(order).decode()) as proc:
            yield proc, proc.ready(60.0), Path(scratch, "loads")


def _round_trips(settings: Settings, suite: str, in_flight: int, url: str, record: str = "") -> Figure:
    with _hub(settings, url, record) as (proc, ready, loads):
        sides = SIDES.get(in_flight, 4)
        options = {**Bystanders.cast(proc, ready, sides, sides), "size": settings.body}
        before = procs.group_usage(proc.group)
        figure = load("bench.hub:ChiffonWs", options, suite=suite, in_flight=in_flight, settings=settings, server=proc)
        after = procs.group_usage(proc.group)
        spent = {pid: usage.cpu - before[pid].cpu for pid, usage in after.items() if pid in before}
        main = spent[proc.group] / max(procs.TICK, sum(spent.values()))
        extra = {**figure.extra, "main_cpu": figure.server_cpu * main, "rows": 0.0, "durable_steps": 2.0}
        if url:
            asked, trips = map(int, loads.read_text().split())
            extra["loads"] = asked / max(1, trips)
        return msgspec.structs.replace(figure, extra=extra)


# -- the programs ------------------------------------------------------------------------------------------------------


async def serve(data: str, url: str, record: str) -> None:
    from dragoman.app import wiring
    from dragoman.app.settings import Server
    from dragoman.app.settings import Settings as HubSettings
    from dragoman.core.ports import Store
    from dragoman.stores.postgres.sessions import Writer
    from dragoman.stores.postgres.store import PostgresStore

    settings = HubSettings(data=data, server=Server(port=0, grpc_port=0))
    process = wiring.open_process(settings)
    units: list[Any] = []
    if record:
        honest = Writer.write

        async def write(writer: Writer, sql: str, values: Any) -> Any:
            units.append((sql, list(values)))
            return await honest(writer, sql, values)

        Writer.write = write  # type: ignore[method-assign]
    store: Store = (
        PostgresStore(url, term=await _lead(url), vault=process.vault, keys=process.vault, now=process.clock)
        if url
        else wiring.open_store(settings, process.vault)
    )
    files = wiring.open_files(settings, process.mint, process.clock, process.vault)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with wiring.term(process, wiring.own_core(process, store, files)) as running:
        sys.stdout.write(
            msgspec.json.encode({"http": running.serving.url, "admin_token": running.admin_token}).decode() + "\n"
        )
        sys.stdout.flush()
        while not over.is_set():
            if isinstance(store, PostgresStore):
                Path(data, "loads").write_text(f"{store.loader.loads} {store.accepted}")
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.25)
        if record:
            Path(record).write_bytes(pickle.dumps(units))
    process.data.withdraw()


async def _lead(url: str) -> Any:
    from dragoman.stores.postgres import lease

    await lease.init(url, "default")
    table = lease.LeaseTable(url, "default")
    seen = await table.read()
    term = await table.take(seen.epoch, holder="bench", url="", ttl=3600.0)
    await table.close()
    assert term is not None
    return term


async def replay(url: str, record: str) -> None:
    """Commit the recorded units, one after the other, as the hub did."""
    from dragoman.stores.postgres import functions
    from dragoman.stores.postgres.store import PostgresStore

    units = pickle.loads(Path(record).read_bytes())  # our own, a moment old
    term = await _lead(url)
    store = PostgresStore(url, term=term)
    await store.open()
    added = len(functions.SCALARS) + sum(
        len(columns) for table, step, columns in functions.HOT[:2]
    )  # the place of the numbers of added tasks
    write = store._writer.write
    trips, cpu, began = 0, time.process_time(), time.perf_counter()
    for sql, values in units:
        values[0] = term.epoch
        if not await write(sql, values):
            raise RuntimeError("a recorded unit was not committed")
        trips += len(values[added]) if sql == functions.CALL_COMMIT else 0
    seconds = time.perf_counter() - began
    figure = Figure(
        suite="commits-postgres",
        in_flight=REPLAYED,
        rate=trips / seconds,
        server_cpu=(time.process_time() - cpu) / max(1, trips) * 1e6,
        operations=trips,
        extra={"units_rate": len(units) / seconds, "durable_steps": 2.0},
    )
    await store.close()
    sys.stdout.write(msgspec.json.encode(figure).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import structlog
    import uvloop

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    given = msgspec.json.decode(sys.argv[1])
    uvloop.run(serve(**given) if "data" in given else replay(**given))
