"""The management API and the operations endpoints as one ASGI application.

Mount `app(context)` as the fallback behind the protocols' own endpoints. When the hub drains, call
`context.waiters.close()`: streams and long polls end at once, and their clients connect again to the hub that serves
next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.api.bodies import read_call
from dragoman.api.context import PROTOCOL, ApiRoute, Context, respond
from dragoman.api.problems import Next, Problem, Reason, problem
from dragoman.api.refusal_page import OPENED, refusal_page, wants_page
from dragoman.api.routes import SERVED
from dragoman.api.sessions import Caller
from dragoman.core.ids import ADMIN
from dragoman.core.model.people import Role
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused

log = structlog.get_logger("dragoman.api")

UNROUTED = {
    404: (
        Reason.NO_ROUTE,
        Fault(kind=Kind.NOT_FOUND, message="there is no such address"),
        Next("look at GET /openapi.json for what there is", "GET /openapi.json"),
    ),
    405: (
        Reason.WRONG_METHOD,
        Fault(kind=Kind.INVALID, message="this address does not accept this method"),
        Next("use one of the methods in the Allow header"),
    ),
}
"""What Starlette answers to a request that no route takes."""


def app(context: Context) -> Starlette:
    served = Starlette(routes=_routes(context, SERVED), exception_handlers={HTTPException: _no_route})
    served.router.redirect_slashes = False
    return served


def _routes(context: Context, routes: Iterable[ApiRoute]) -> list[Route]:
    """One route for each path, so that the answer to a wrong method lists the right ones."""
    by_path: dict[str, dict[str, ApiRoute]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [
        Route(path, _dispatch(context, methods), methods=list(methods)) for path, methods in _specific_first(by_path)
    ]


def _specific_first(by_path: dict[str, dict[str, ApiRoute]]) -> list[tuple[str, dict[str, ApiRoute]]]:
    return sorted(by_path.items(), key=lambda item: item[0].count("{"))


def _dispatch(context: Context, methods: dict[str, ApiRoute]) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        route = methods["GET" if request.method == "HEAD" else request.method]
        assert route.handler is not None
        instance = route.path if route.secret_path else request.url.path
        caller: Caller | None = None
        try:
            if isinstance(route.auth, Role):
                caller = context.sessions.caller(request, context.intake.now())
                context.admit(request, caller, route.auth)
            answer = await route.handler(context, await read_call(context, route, request, caller))
            return answer if isinstance(answer, Response) else respond(next(iter(route.answers)), answer)
        except Problem as refusal:
            await _audit_refusal(context, route, request, refusal, caller)
            answer = problem(refusal.fault, instance, reason=refusal.reason, next=refusal.next, status=refusal.status)
            if route.path in OPENED and wants_page(request):
                return refusal_page(route.path, refusal.fault, refusal.next, answer.status_code)
            return answer
        except Refused as refusal:
            answer = problem(refusal.fault, instance)
            if route.path in OPENED and wants_page(request):
                return refusal_page(route.path, refusal.fault, None, answer.status_code)
            return answer
        except StoreFailed as error:
            log.error("the store cannot be read", method=request.method, path=route.path, why=str(error))
            fault = Fault(kind=Kind.OVERLOADED, message="the store cannot be read now", retryable=True)
            return problem(fault, instance)
        except Exception as error:
            # Nothing of it reaches the client: it may hold what the client must not see.
            log.error("request failed", method=request.method, path=route.path, exc_info=error)
            return problem(Fault(kind=Kind.INTERNAL, message="an internal error of the hub"), instance)

    return serve


async def _audit_refusal(
    context: Context, route: ApiRoute, request: Request, refusal: Problem, caller: Caller | None
) -> None:
    """What the API refuses is audited like what the core refuses, under the caller's name; a GET of something that is
    missing is not."""
    stranger = refusal.fault.kind is Kind.UNAUTHENTICATED
    if route.method == "GET" and not stranger:
        return
    await context.refusals.record(
        f"{route.method} {route.path}",
        refusal.fault,
        principal=None if stranger else ADMIN,
        person=None if caller is None else caller.person,
        protocol=PROTOCOL,
        about=request.path_params.get("id", "")[:200] or None,
    )


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    other = (None, Fault(kind=Kind.INVALID, message=str(error.detail)), None)
    reason, fault, next = UNROUTED.get(error.status_code, other)
    status, headers = error.status_code, error.headers
    if status == 404 and wants_page(request):
        return refusal_page(request.url.path, fault, None, status)
    return problem(fault, request.url.path, reason=reason, next=next, status=status, headers=headers)
