"""The management API: how people, the command line and the dashboard see and steer the hub.

    routes.py            every route there is, in one list; Starlette and OpenAPI are both made from it
    context.py           what a route is, and what every handler gets: intake, store, credentials, waiting requests
    protocol_routes.py   the routes of the protocols' own endpoints, for the documentation
    bodies.py            what may be sent in, checked before anything is done
    problems.py          refusals as RFC 9457 problem details
    store_reads.py       what handlers read from the store: tasks by prefix, outputs page by page
    tasks.py task_events.py agents.py people.py contracts.py files.py keys.py audit.py operations.py    the handlers
    openapi.py                                                                                          documentation
    application.py       `app`, the one function to mount

A new route is a row in `routes.py` (path, types of query, body and answer, who may call it) and a handler that takes a
`Call` of these types and returns the answer. Reads go to the store; everything that changes something goes through the
intake as a command.
"""

from dragoman.api.application import app
from dragoman.api.context import Context

__all__ = ["Context", "app"]
