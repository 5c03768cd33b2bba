"""Personal data travels sealed."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from tests.e2e.a2acp.speaking import BROKER, INTENT, RECORD, Json, Key, Speaker, b64, code, details, raw
from tests.support.hubproc import running, until


def test_personal_data_travels_sealed_and_leaves_no_trace(tmp_path: Path) -> None:
    canary = "Zaphod-Beeblebrox"
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub, "lab"), Speaker(hub, "lab")
        bob.serve(RECORD)
        mine, his = Key(), Key()

        def answer(request: Json) -> Json:
            assert his.open(request) == {"patient": canary}
            return his.seal(bob.response(request, {"seen": canary}))

        with bob.working(answer, {"accepted": True, "public_key": his.public}) as heard:
            told = ada.shake_hands(bob, "record", public_key=mine.public)
            mine.take(told, ada.id)
            until(lambda: any(one["message_type"] == "event" for one in heard))
            his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
            assert (mine.kid, mine.secret) == (his.kid, his.secret)
            contract = told["contract"]["contract_id"]
            wish = {"patient": canary, "contract_id": contract, "correlation_id": "p-1"}
            status, response = ada.post(mine.seal(ada.message("request", bob, "record", wish)))
            assert (status, response["message_type"]) == (200, "response"), response
            assert mine.open(response) == {"seen": canary}

            # in clear, moved, flipped, under a used nonce, under another key
            status, refused = ada.ask(bob, "record", wish)
            assert (status, code(refused)) == (403, "SECURITY_POLICY_VIOLATION")
            sealed = mine.seal(ada.message("request", bob, "record", wish))
            assert code(ada.post({**sealed, "message_id": str(uuid.uuid4())})[1]) == "SECURITY_POLICY_VIOLATION"
            flipped = bytes([raw(sealed["payload"]["ciphertext"])[0] ^ 1]) + raw(sealed["payload"]["ciphertext"])[1:]
            broken = {**sealed, "payload": {**sealed["payload"], "ciphertext": b64(flipped)}}
            assert code(ada.post(broken)[1]) == "SECURITY_POLICY_VIOLATION"
            nonce = os.urandom(12)
            assert ada.post(mine.seal(ada.message("request", bob, "record", wish), nonce))[0] == 200
            again = ada.post(mine.seal(ada.message("request", bob, "record", wish), nonce))[1]
            assert (code(again), details(again)["reason"]) == ("SECURITY_POLICY_VIOLATION", "nonce")
            other = {**sealed["payload"], "kid": "another"}
            assert code(ada.post({**sealed, "payload": other})[1]) == "CONTRACT_VIOLATION"
            wrong = mine.seal(ada.message("request", bob, "record", {"name": canary, "contract_id": contract}))
            misfit = ada.post(wrong)[1]
            assert code(misfit) == "CONTRACT_VIOLATION"
            assert canary not in json.dumps(misfit)

            # a new key; the old one still opens what was on its way
            fresh = Key()
            status, rotated = ada.ask(
                BROKER, "rotate_key", {"collaboration_id": told["collaboration_id"], "public_key": fresh.public}
            )
            assert status == 200, rotated
            fresh.take({**told, **rotated["payload"]}, ada.id)
            until(lambda: any(one["intent"] == "rotate_key" for one in heard))
            his.take({**told, **next(one["payload"] for one in heard if one["intent"] == "rotate_key")}, bob.id)
            assert fresh.kid != mine.kid
            status, response = ada.post(fresh.seal(ada.message("request", bob, "record", wish)))
            assert (status, fresh.open(response)) == (200, {"seen": canary})

        record = hub.admin.get("/api/v1/audit?limit=500").json["records"]
        done = [(one["action"], one["outcome"]) for one in record if one["action"].startswith("pii.")]
        assert ("pii.refused", "refused") in done
        assert ("pii.request", "ok") in done or any(action == "pii.request" for action, _ in done)
        shown = json.dumps(hub.admin.get("/api/v1/tasks?full=1").json) + json.dumps(record)
        assert canary not in shown
        assert canary not in hub.log.read_text()
        assert hub.stop() == 0
    for file in (path for path in hub.data.rglob("*") if path.is_file()):
        assert canary.encode() not in file.read_bytes(), file
        if file.parent.name == "keys":
            assert file.stat().st_mode & 0o077 == 0


def test_end_to_end_only_the_two_can_read(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
        bob.serve(INTENT)
        mine, his = Key(), Key()

        def answer(request: Json) -> Json:
            assert his.open(request) == {"rows": "anything"}
            return his.seal(bob.response(request, {"whatever": 1}))

        with bob.working(answer, {"accepted": True, "public_key": his.public}) as heard:
            told = ada.shake_hands(bob, "provision", public_key=mine.public, mode="end-to-end")
            assert told["contract"]["security"]["validated"] is False
            mine.take(told, ada.id)
            until(lambda: any(one["message_type"] == "event" for one in heard))
            his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
            assert mine.secret == his.secret
            wish = {"rows": "anything", "contract_id": told["contract"]["contract_id"], "correlation_id": "e-1"}
            status, response = ada.post(mine.seal(ada.message("request", bob, "provision", wish)))
            assert (status, mine.open(response)) == (200, {"whatever": 1})
            plain = ada.ask(bob, "provision", wish)[1]
            assert code(plain) == "SECURITY_POLICY_VIOLATION"
