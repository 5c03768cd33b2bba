"""S3-compatible storage for tests: moto's server in this process, on a free port of loopback, started once."""

from __future__ import annotations

import logging
import urllib.request
from functools import cache

from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "not a secret", "AWS_REGION": "us-east-1"}


@cache
def endpoint() -> str:
    """Its address. It ends with the process."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or it prints every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def make_bucket(name: str) -> str:
    """The address of a bucket, as the settings have it; made if it is missing."""
    made = urllib.request.Request(f"{endpoint()}/{name}", method="PUT")
    with urllib.request.urlopen(made, timeout=10) as answer:
        assert answer.status == 200
    return f"s3://{name}?endpoint={endpoint()}"


def objects(name: str) -> dict[str, bytes]:
    """What lies in a bucket, as the storage's owner sees it."""
    import obstore
    from obstore.store import S3Store

    known = {variable.lower(): value for variable, value in CREDENTIALS.items()}
    bucket = S3Store(name, config={**known, "endpoint": endpoint()}, client_options={"allow_http": True})
    paths = [str(one["path"]) for page in obstore.list(bucket) for one in page]
    return {path: bytes(obstore.get(bucket, path).bytes()) for path in paths}
