"""Write the schemas of the management API as an OpenAPI document, from which the dashboard's types are generated.

It needs no hub: the schemas are made from the table of routes. The messages of the protocols are left out, since no
page sends or reads them; the frames of the event stream are added, since the API's own document only says that it is a
stream.
"""

from __future__ import annotations

import json
import sys

from dragoman.api.events import ChangesOut, StreamEvent
from dragoman.api.openapi import REF, components, document
from dragoman.api.routes import MANAGEMENT


def dashboard_document() -> str:
    schemas = document(MANAGEMENT)["components"]["schemas"]
    schemas |= components((ChangesOut, StreamEvent), REF)[1]
    info = {"title": "The management API, as the dashboard uses it", "version": "1"}
    whole = {"openapi": "3.1.0", "info": info, "paths": {}, "components": {"schemas": schemas}}
    return json.dumps(whole, indent=1, sort_keys=True)


if __name__ == "__main__":
    sys.stdout.write(dashboard_document())
