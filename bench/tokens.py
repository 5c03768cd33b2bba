"""Making and verifying one token in this process, beside the libraries that do the cryptography.

    token-issue, token-verify    ours; `-again`: a token that was seen before, as with all messages of an agent but one
    …-pyjwt                      PyJWT alone, which checks less
    …-cryptography               the bare signature

CPU of one operation, the best of some rounds: nothing but computing happens in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import jwt as pyjwt

from bench.figures import Figure, Settings
from dragoman.security.jwt import Authority, Issued
from dragoman.security.keys import KeyRing, new_key

ROUNDS = 5


def measure(settings: Settings) -> Iterable[Figure]:
    now = int(time.time())
    ring = KeyRing([new_key(now)])
    remembering, forgetting = Authority(ring), Authority(ring, remembered=0)
    us, them, words = "sdlc-test-agent", "dataset-provisioning-agent", ["read:datasets", "write:test_scenarios"]

    def issue() -> str:
        made = remembering.issue(
            subject=us, audience=them, domain="a_domain", capabilities=words, ttl=3600, now=now
        )  # fmt: skip
        assert isinstance(made, Issued)
        return made.token

    key: Any = ring.signing
    token = issue()
    claims = pyjwt.decode(token, options={"verify_signature": False})
    head = {"kid": key.kid}
    signed = token.rpartition(".")[0].encode()
    signature = key.material.sign(signed)
    whose = {"audience": them, "now": now, "subject": us, "domain": "a_domain"}
    acts: dict[str, tuple[Callable[[], object], int]] = {
        "token-issue": (issue, 400),
        "token-issue-pyjwt": (lambda: pyjwt.encode(claims, key.material, "EdDSA", headers=head), 400),
        "token-issue-cryptography": (lambda: key.material.sign(signed), 400),
        "token-verify": (lambda: forgetting.verify(token, **whose), 400),
        "token-verify-again": (lambda: remembering.verify(token, **whose), 20_000),
        "token-verify-pyjwt": (lambda: pyjwt.decode(token, key.verifier, ["EdDSA"], audience=them), 400),
        "token-verify-cryptography": (lambda: key.verifier.verify(signature, signed), 400),
    }
    for suite, (act, times) in acts.items():
        act()
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(times):
                act()
            best = min(best, (time.process_time() - began) / times)
        yield Figure(suite=suite, rate=1 / best, server_cpu=best * 1e6, operations=ROUNDS * times)
