"""What tokens and seals cost, beside the bare libraries: `python -m tests.security.credentials.rates`.

CPU time of one operation, the best of five rounds, in this process; no test, since a busy machine is no failure.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import jwt as pyjwt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dragoman.security.collaboration import CollaborationKey, NonceWatch, Pair, Relation, Seal, granted
from dragoman.security.jwt import Authority, Issued
from dragoman.security.keys import KeyRing, new_key
from dragoman.security.masterkey import MasterKeys

NOW = 1_800_000_000
US, THEM = "sdlc-test-agent", "dataset-provisioning-agent"
CAPABILITIES = ["read:datasets", "write:test_scenarios"]
ROUNDS = 5


def cost(name: str, act: Callable[[], Any], times: int = 400) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(times):
            act()
        best = min(best, (time.process_time() - start) / times)
    print(f"{name:<48}{best * 1e6:>9.1f} µs{1 / best:>12,.0f} /s")


def tokens() -> None:
    secret = os.urandom(32)
    ring = KeyRing([new_key(0)]).with_secret("shared", secret)
    remembering, forgetting = Authority(ring), Authority(ring, remembered=0)

    def issue(kid: str | None = None) -> str:
        issued = remembering.issue(
            subject=US, audience=THEM, domain="a_domain", capabilities=CAPABILITIES, ttl=3600, now=NOW, kid=kid
        )
        assert isinstance(issued, Issued)
        return issued.token

    signing: Any = ring.signing
    ours, theirs = issue(), issue("shared")
    now = int(time.time())
    claims = {**pyjwt.decode(ours, options={"verify_signature": False}), "iat": now, "nbf": now, "exp": now + 3600}
    bare = pyjwt.encode(claims, signing.material, "EdDSA", headers={"kid": signing.kid})
    bare_mac = pyjwt.encode(claims, secret, "HS256", headers={"kid": "shared"})
    signed = ours.rpartition(".")[0].encode()
    signature = signing.material.sign(signed)
    whom = {"audience": THEM, "now": NOW, "subject": US, "domain": "a_domain"}
    headers = {"kid": signing.kid}

    cost("issue, EdDSA", issue)
    cost("  PyJWT encode", lambda: pyjwt.encode(claims, signing.material, "EdDSA", headers=headers))
    cost("  cryptography sign", lambda: signing.material.sign(signed))
    cost("verify, EdDSA, first time", lambda: forgetting.verify(ours, **whom))  # type: ignore[arg-type]
    cost("verify, remembered", lambda: remembering.verify(ours, **whom), 20_000)  # type: ignore[arg-type]
    cost("  PyJWT decode", lambda: pyjwt.decode(bare, signing.verifier, ["EdDSA"], audience=THEM))
    cost("  cryptography verify", lambda: signing.verifier.verify(signature, signed))
    cost("issue, HS256", lambda: issue("shared"))
    cost("verify, HS256, first time", lambda: forgetting.verify(theirs, **whom))  # type: ignore[arg-type]
    cost("  PyJWT decode", lambda: pyjwt.decode(bare_mac, secret, ["HS256"], audience=THEM))


def seals() -> None:
    payload = json.dumps({"rows": ["x" * 50] * 18}).encode()[:1000]
    key, bound, relation = CollaborationKey.new(), b"bound", Relation(collaboration="c", source=US, target=THEM)
    seal, cipher = Seal(key), AESGCM(key.secret)
    sealed = seal.shut(payload, bound)
    locked = MasterKeys([os.urandom(32)])
    record = locked.lock(payload, {"row": "1"})

    cost("seal 1 kB", lambda: seal.shut(payload, bound), 20_000)
    cost("open 1 kB", lambda: seal.open(sealed, bound), 20_000)
    cost("open 1 kB, watching nonces", lambda: seal.open(sealed, bound, NonceWatch()), 20_000)
    cost("  cryptography AES-256-GCM, 1 kB", lambda: cipher.encrypt(os.urandom(12), payload, bound), 20_000)
    cost("lock 1 kB at rest", lambda: locked.lock(payload, {"row": "1"}), 5000)
    cost("unlock", lambda: locked.unlock(record, {"row": "1"}), 5000)
    cost("agree end to end: two pairs, one side's key", lambda: Pair().derived(Pair().public_key, key.kid, relation))
    cost("hand a key over", lambda: granted(key, Pair().public_key, relation, US))


if __name__ == "__main__":
    tokens()
    seals()
