"""What a second node costs and saves: durable tasks over HTTP, through one hub, and through a node that follows it.

    hub-whole     clients and agents talk to the hub that decides
    hub-nodes     they talk to a node that follows it (`app.cluster.link`, over loopback without TLS)

Both are this file's own programs, so that nothing but the node in between differs. On two cores the second node cannot
raise the rate; what counts is how much of its CPU the leader gets rid of, and how much both need together. CPU of the
leader is given with and without its writer process, which a cluster over PostgreSQL does not have.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench import procs
from bench.figures import Figure, Settings
from bench.hub import Bystanders
from bench.load import measure as load

IN_FLIGHT = 32
SIDES = 4


def measure(settings: Settings) -> Iterable[Figure]:
    whole = figure = None
    with _leader(settings) as (proc, ready):
        whole = _round_trips(settings, "hub-whole", proc, ready, ready["http"])
    yield whole
    with _leader(settings) as (proc, ready), procs.python("bench.nodes", "follow", str(ready["link"])) as node:
        figure = _round_trips(settings, "hub-nodes", proc, ready, node.ready()["http"], node)
    here = figure.server_cpu
    node_cpu = figure.extra["companion_busy"] / figure.rate * 1e6 if figure.rate else 0.0
    alone, whole_alone = here * figure.extra["main"], whole.server_cpu * whole.extra["main"]
    yield msgspec.structs.replace(
        figure,
        extra={
            **figure.extra,
            "leader_share": here / whole.server_cpu,
            "leader_process_share": alone / whole_alone,
            "all": (here + node_cpu) / whole.server_cpu,
            "node_cpu": node_cpu,
        },
    )


@contextmanager
def _leader(settings: Settings) -> Iterator[tuple[procs.Proc, dict[str, Any]]]:
    place = Path(settings.data or procs.ROOT / "bench" / "results")
    place.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir=place) as scratch,
        procs.python("bench.nodes", "lead", scratch) as proc,
    ):
        yield proc, proc.ready()


def _round_trips(
    settings: Settings, suite: str, proc: procs.Proc, ready: dict[str, Any], url: str, node: procs.Proc | None = None
) -> Figure:
    options = Bystanders.cast(proc, ready, SIDES, SIDES)
    before = procs.group_usage(proc.group)
    figure = load(
        "bench.hub:ChiffonHttp",
        {**options, "url": url, "size": settings.body},
        suite=suite,
        in_flight=IN_FLIGHT,
        settings=settings,
        server=proc,
        companion=node,
    )
    after = procs.group_usage(proc.group)
    spent = {pid: usage.cpu - before[pid].cpu for pid, usage in after.items() if pid in before}
    main = spent[proc.group] / max(procs.TICK, sum(spent.values()))
    return msgspec.structs.replace(figure, extra={**figure.extra, "main": main})


# -- the programs ------------------------------------------------------------------------------------------------------


async def lead(data: str) -> None:
    from dragoman.app.cluster.link import LeaderPort
    from dragoman.app.settings import Server
    from dragoman.app.settings import Settings as HubSettings
    from dragoman.app.wiring import hub

    async with hub(HubSettings(data=data, server=Server(port=0, grpc_port=0))) as running:
        port = LeaderPort(running.intake, host="127.0.0.1", port=0, tls=None)  # type: ignore[arg-type,unused-ignore]
        await port.start()
        _say({"http": running.serving.url, "admin_token": running.admin_token, "link": port.address[1]})
        await asyncio.Event().wait()


async def follow(link: str) -> None:
    from dragoman.app.clock import Mint, SystemClock
    from dragoman.app.cluster.link import RemoteIntake
    from dragoman.app.settings import Settings as HubSettings
    from dragoman.server.chiffon import http as chiffon
    from dragoman.server.chiffon.handler import ChiffonHandler
    from dragoman.server.limits import Limits
    from dragoman.server.server import HttpServer
    from dragoman.stores.memory import MemoryStore

    clock, store = SystemClock(lambda seconds: None), MemoryStore()  # these requests read nothing from a store
    intake = await RemoteIntake.connect(
        ("127.0.0.1", int(link)),
        node="n2",
        store=store,
        rules=HubSettings().core_rules(),
        now=clock,
        mint=Mint(clock),
        tls=None,
    )
    endpoints = chiffon.endpoints(ChiffonHandler(intake, store, limits=Limits()))

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError(scope["path"])

    async with HttpServer(intake, endpoints, fallback=nothing, port=0) as serving:
        _say({"http": serving.url})
        await intake.lost


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import structlog
    import uvloop

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    uvloop.run({"lead": lead, "follow": follow}[sys.argv[1]](sys.argv[2]))
