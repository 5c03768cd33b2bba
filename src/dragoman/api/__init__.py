"""The management API: how people, the command line and the dashboard see and steer the hub.

    route.py         what a route is: handler and documentation in one value
    routes.py        every route there is, in one list; Starlette and OpenAPI are both made from it
    context.py       what every handler gets: intake, store, the admin's credential, waiting requests
    bodies.py        what may be sent in, checked before anything is done
    problems.py      refusals as RFC 9457 problem details
    store_reads.py   what handlers read from the store: tasks by prefix, outputs page by page
    tasks.py stream.py agents.py questions.py deadletters.py audit.py    the handlers
    openapi.py page.py                                                   documentation, the status page
    application.py   `app`, the one function to mount

Reads go to the store, everything that changes something goes through the intake as a command.
"""

from dragoman.api.application import app

__all__ = ["app"]
