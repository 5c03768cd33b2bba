"""Handshakes, contracts and what they hold both sides to; domain policies, personal data at rest."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.contracts import PATIENT, PROVISION, SECRET, agreed, lab_and_clinic, shakes
from tests.support.world import World

from dragoman.core.agents.model import Offer
from dragoman.core.commands import (
    Answer,
    AnswerHandshake,
    Ask,
    AskPerson,
    Cancel,
    Claim,
    EndContract,
    RegisterAgent,
    RemoveAgent,
    ReportError,
    ReportFault,
    Retry,
    RevokeToken,
    RotateKey,
    SetDomainPolicy,
    Severity,
)
from dragoman.core.contracts.model import Secret, Standing
from dragoman.core.delivery.model import Cargo
from dragoman.core.errors import Fault, Kind
from dragoman.core.files import FileRef
from dragoman.core.ids import ADMIN, HOUR, MINUTE, SECOND, AgentId, Instant
from dragoman.core.lookups import TaskById
from dragoman.core.ports import TaskFilter
from dragoman.core.state.model import Registry
from dragoman.core.tasks.model import QuestionStatus, Status
from dragoman.security.masterkey import MasterKeys
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await lab_and_clinic(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()


async def test_the_five_steps(world):
    lab, data = await world.connect("lab"), await world.connect("data")
    question = await world.ask(shakes(world))
    [proposal] = data.take()
    assert (proposal.delivery.cargo, proposal.event.id) == (Cargo.PROPOSAL, question.id)
    await world.ask(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=True))
    [told] = data.take()
    assert (told.delivery.cargo, told.event.standing) == (Cargo.CONTRACT, Standing.ACTIVE)
    [answer] = lab.take()
    assert answer.event.answer == {"contract_id": told.event.id}
    assert (told.event.source.domain, told.event.target.domain) == ("research", "clinic")


async def test_a_no_and_no_answer(world):
    lab = await world.connect("lab")
    await world.connect("data")
    question = await world.ask(shakes(world))
    await world.ask(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=False, reason="busy"))
    assert lab.take()[0].event.answer["fault"]["kind"] == "contract"
    late = await world.ask(shakes(world))
    await world.advance(5)
    assert lab.take()[-1].event.answer["fault"]["kind"] == "timeout"
    refused = AnswerHandshake(principal=AgentId("data"), question=late.id, accepted=True)
    assert (await world.refused(refused)).kind is Kind.CONFLICT
    assert (await world.store.question(late.id)).status is QuestionStatus.ANSWERED


async def test_a_handshake_that_is_over_is_put_to_nobody_any_more(world):
    missed = await world.ask(shakes(world))
    await world.advance(5)
    assert (await world.store.question(missed.id)).status is QuestionStatus.ANSWERED
    answered = await world.ask(shakes(world))
    await world.ask(AnswerHandshake(principal=AgentId("data"), question=answered.id, accepted=False))
    open_still = await world.ask(shakes(world))
    data = await world.connect("data")
    assert [parcel.event.id for parcel in data.take()] == [open_still.id]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"target": "nobody"}, Kind.NOT_FOUND),
        ({"intent": "fly"}, Kind.UNSUPPORTED_WORK),
        ({"target_version": "1.0.0"}, Kind.UNSUPPORTED_VERSION),
        ({"domain": "elsewhere"}, Kind.FORBIDDEN),
        ({"granted": ()}, Kind.UNAUTHENTICATED),
        ({"request_schema": {"type": "object", "properties": {"rows": {"type": "string"}}}}, Kind.INVALID),
        ({"intent": "patient"}, Kind.FORBIDDEN),  # personal, and no key
    ],
)
async def test_why_there_is_no_contract(world, fields, kind):
    assert (await world.refused(shakes(world, **fields))).kind is kind


async def test_a_schema_that_is_narrower_fits(world):
    narrow = {"type": "object", "properties": {"rows": {"type": "integer", "minimum": 5}}, "required": ["rows"]}
    assert (await agreed(world, request_schema=narrow)).intent == "provision"


async def test_both_sides_are_held_to_it(world):
    await world.connect("data")
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    fault = await world.refused(world.request(None, **ask, input={"rows": "many"}))
    assert (fault.kind, fault.facts["faults"][0]["pointer"]) == (Kind.CONTRACT, "/rows")
    assert "many" not in str(fault.facts)
    task = await world.submit(None, **ask, input={"rows": 3})
    assert (task.owner, task.contract) == ("data", contract.id)
    done = await world.finish("data", task.id, body=b'{"result":{"dataset_id":"d-1"}}')
    assert done.status is Status.COMPLETED
    broken = await world.submit(None, **ask, input={"rows": 3})
    fault = await world.refused_with("data", broken.id, b'{"result":{"other":1}}')
    assert fault.kind is Kind.CONTRACT
    failed = await world.task(broken.id)
    assert (failed.status, failed.fault.kind) == (Status.FAILED, Kind.CONTRACT)


async def test_so_is_a_person_who_edits_what_was_asked(world):
    await world.connect("data")
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    task = await world.submit(None, **ask, input={"rows": 3})
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    fault = await world.refused(Retry(principal=ADMIN, task_id=task.id, input=b'{"rows":"many"}'))
    assert (fault.kind, fault.facts["faults"][0]["pointer"]) == (Kind.CONTRACT, "/rows")
    assert (await world.task(task.id)).status is Status.CANCELLED
    assert (await world.ask(Retry(principal=ADMIN, task_id=task.id, input=b'{"rows":4}'))).owner == "data"


@pytest.mark.parametrize("over", ["ended", "expired", "closed"])
async def test_a_contract_that_is_over_lets_nothing_be_begun_anew(world, over):
    await world.connect("data")
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    task = await world.submit(None, **ask, input={"rows": 3})
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    if over == "ended":
        await world.ask(EndContract(principal=AgentId("data"), collaboration=contract.collaboration))
    elif over == "expired":
        world.time = Instant(world.time + 25 * HOUR)
    else:
        await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="clinic", allow=False))
    fault = await world.refused(Retry(principal=ADMIN, task_id=task.id))
    assert fault.kind is (Kind.FORBIDDEN if over == "closed" else Kind.CONTRACT)
    assert (await world.task(task.id)).status is Status.CANCELLED


async def test_nobody_puts_words_into_the_place_of_a_ciphertext(world):
    """They would leave in clear, in an envelope that says they are sealed."""
    await world.connect("data")
    contract = await agreed(world, end_to_end=True, secret=Secret(kid="k1", source_key="sk"))
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "sealed": True}
    task = await world.submit(None, **ask, input={"ciphertext": "c"})
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    assert (await world.refused(Retry(principal=ADMIN, task_id=task.id, input=b"{}"))).kind is Kind.FORBIDDEN
    assert (await world.ask(Retry(principal=ADMIN, task_id=task.id))).owner == "data"


async def test_a_caller_of_another_protocol_is_held_to_the_offer(world):
    await world.connect("data")
    await world.add("boss", "orchestrator", domain="research", capabilities=("read:data",))
    fault = await world.refused(world.request(None, pinned="data", type="provision", input={}))
    assert fault.kind is Kind.INVALID
    await world.submit(None, pinned="data", type="provision", input={"rows": 1})


async def test_the_offer_holds_also_for_what_is_asked_of_its_kind_or_of_anybody(world):
    """A name in front of the work is not what makes it personal, nor what makes it fit."""
    await world.add("boss", "orchestrator", domain="research", capabilities=("read:data",))
    data = await world.connect("data")
    fault = await world.refused(world.request("data", type="provision", input={"rows": "many"}))
    assert (fault.kind, fault.facts["faults"][0]["pointer"]) == (Kind.INVALID, "/rows")
    assert (await world.submit("data", type="provision", input={"rows": 1})).owner == "data"
    fault = await world.refused(world.request("data", type="patient", input={"name": "Erika"}))
    assert (fault.kind, fault.facts) == (Kind.FORBIDDEN, {"pii": True})
    anybody = await world.submit(None, type="patient", input={"name": "Erika"})  # the lab, which declared nothing
    assert (anybody.status, anybody.personal) == (Status.QUEUED, True)
    assert len(data.work) == 1


async def test_work_for_anybody_goes_past_those_whose_terms_it_does_not_meet(world):
    await world.add("boss", "orchestrator")
    for name, schema in (("old", {"required": ["rows"]}), ("new", {"required": ["rows", "form"]})):
        await world.add(name, "counter", work_types=("count",))
        offer = Offer(intent="count", input_schema=schema)
        await world.ask(RegisterAgent(principal=AgentId(name), work_types=("count",), offers=(offer,)))
        await world.connect(name)
    given = [await world.submit("counter", type="count", input={"rows": n}) for n in range(3)]
    assert {task.owner for task in given} == {"old"}
    assert (await world.submit("counter", type="count", input={"rows": 1, "form": "a"})).owner == "new"
    fault = await world.refused(world.request("counter", type="count", input={}))
    assert fault.kind is Kind.INVALID


async def test_what_is_queued_in_clear_is_not_given_to_whoever_declares_it_personal_later(world):
    await world.add("boss", "orchestrator")
    task = await world.submit(None, type="weigh", input={"name": "Erika"}, kept_for_anybody=True)
    for name, protocol in (("scales", "forge"), ("balance", "a2acp")):
        await world.add(name, protocol=protocol)
        terms = (Offer(intent="weigh", pii=True),)
        await world.ask(RegisterAgent(principal=AgentId(name), work_types=("weigh",), offers=terms))
        peer = await world.connect(name)
        assert peer.work == []
    assert (await world.task(task.id)).owner is None
    again = await world.submit(None, type="weigh", input={"name": "Erika"}, kept_for_anybody=True)
    assert (again.owner, again.personal) == ("scales", True)


@pytest.mark.parametrize("addressed", [{"pinned": "data"}, {"kind": "data"}], ids=["by name", "by kind"])
async def test_what_an_offer_requires_is_required_of_callers_of_every_protocol(world, addressed):
    await world.connect("data")
    await world.add("boss", "orchestrator", domain="research")
    wish = {"type": "provision", "input": {"rows": 1}, "kind": None, **addressed}
    await world.ask(RegisterAgent(principal=AgentId("boss"), capabilities=("read:data",)))  # its own word is no grant
    fault = await world.refused(world.request(**wish))
    assert (fault.kind, fault.facts) == (Kind.FORBIDDEN, {"missing": ["read:data"]})
    await world.add("chief", "orchestrator", domain="research", capabilities=("read:data",))
    assert (await world.submit(**wish, principal="chief")).owner == "data"
    assert (await world.submit(**wish, principal=ADMIN)).owner == "data"


BORDERS = {
    "nothing is said": ((), True),
    "others may": ((("lab", "ward"),), False),
    "it may": ((("shop", "ward"),), True),
    "anybody may": ((("*", "ward"),), True),
    "it may ask anybody": ((("shop", "*"),), True),
    "others may ask anybody": ((("lab", "*"),), False),
    "for something else": ((("shop", "ward", {"intents": ("dig",)}),), False),
    "for this": ((("shop", "ward", {"intents": ("count",)}),), True),
    "only encrypted": ((("shop", "ward", {"encrypt": True}),), False),
    "it may not": ((("shop", "ward", {"allow": False}),), False),
    "it may not, though anybody may": ((("*", "ward"), ("shop", "ward", {"allow": False})), False),
    "others may not": ((("lab", "ward", {"allow": False}),), True),
    "something of another domain": ((("lab", "yard"),), True),
}
"""What the policy says, and whether one of the shop may ask one of the ward to count, without a contract."""


@pytest.mark.parametrize("addressed", ["by name", "by kind", "anybody"])
@pytest.mark.parametrize(("said", "may"), BORDERS.values(), ids=BORDERS)
async def test_domain_policies_bind_callers_of_every_protocol(said, may, addressed):
    world = await World().start()
    await world.add("boss", domain="shop", work_types=())
    await world.add("nurse", "counter", protocol="coven", domain="ward", work_types=("count",))
    nurse = await world.connect("nurse")
    for source, target, *how in said:
        await world.ask(SetDomainPolicy(principal=ADMIN, source=source, target=target, **(how[0] if how else {})))
    to = {"by name": {"pinned": "nurse"}, "by kind": {"kind": "counter"}, "anybody": {}}[addressed]
    wish = world.request(**{"kind": None, "type": "count", **to})
    if may:
        assert (await world.ask(wish)).owner == "nurse"
    else:
        fault = await world.refused(wish)
        assert (fault.kind, fault.facts["source_domain"], fault.facts["target_domain"]) == (
            Kind.FORBIDDEN, "shop", "ward",
        )  # fmt: skip
        assert nurse.work == []
    for own in ({"principal": ADMIN}, {"principal": AgentId("nurse"), "kind": "counter"}):  # people; one's own domain
        await world.submit(**{"kind": None, "type": "count", **to, **own})
    await world.intake.stop()


async def test_whoever_has_no_domain_is_of_the_default_one_and_bound_by_what_is_said_of_that(world):
    await world.connect("data")
    await world.add("boss", "orchestrator", capabilities=("read:data",))
    wish = {"pinned": "data", "type": "provision", "input": {"rows": 1}}
    assert (await world.submit(None, **wish)).owner == "data"  # that research may ask the clinic shuts nobody out
    await world.ask(SetDomainPolicy(principal=ADMIN, source="default", target="clinic", allow=False))
    fault = await world.refused(world.request(None, **wish))
    assert (fault.kind, fault.facts["source_domain"]) == (Kind.FORBIDDEN, "default")


async def test_work_that_waits_for_anybody_is_not_given_over_a_closed_border(world):
    await world.add("boss", "orchestrator", domain="shop")
    task = await world.submit(None, type="weigh", kept_for_anybody=True)
    await world.add("scales", protocol="forge", domain="clinic")
    scales = await world.connect("scales")
    fault = await world.refused(Claim(principal=AgentId("scales"), task_id=task.id))
    assert (scales.work, fault.kind) == ([], Kind.NOT_FOUND)
    await world.add("balance", protocol="forge", domain="shop")
    assert (await world.connect("balance")).work == [task.id]


async def test_an_agent_of_another_protocol_agreed_when_it_declared(world):
    await world.add("cov", protocol="coven", domain="clinic", work_types=("provision",))
    await world.connect("cov")
    question = await world.ask(shakes(world, target="cov"))
    assert question.status is QuestionStatus.ANSWERED
    task = await world.submit(
        None, principal="lab", protocol="a2acp", type="provision", contract=question.answer["contract_id"]
    )
    assert task.owner == "cov"


async def test_somebody_elses_an_ended_and_an_expired_contract(world):
    data = await world.connect("data")
    contract = await agreed(world)
    await world.add("spy", protocol="a2acp", domain="research")
    ask = {"protocol": "a2acp", "type": "provision", "contract": contract.id, "input": {"rows": 1}}
    assert (await world.refused(world.request(None, principal="spy", **ask))).kind is Kind.CONTRACT
    assert (
        await world.refused(EndContract(principal=AgentId("spy"), collaboration=contract.collaboration))
    ).kind is Kind.NOT_FOUND
    data.take()
    await world.ask(EndContract(principal=AgentId("lab"), collaboration=contract.collaboration, reason="done"))
    [told] = data.take()
    assert (told.event.standing, told.event.reason) == (Standing.TERMINATED, "done")
    assert (await world.refused(world.request(None, principal="lab", **ask))).facts["standing"] == "terminated"
    other = await agreed(world)
    world.time = Instant(world.time + 25 * HOUR)
    late = await world.refused(world.request(None, principal="lab", **{**ask, "contract": other.id}))
    assert late.facts["standing"] == "expired"


@pytest.mark.parametrize(("gone", "left"), [("lab", "data"), ("data", "lab")])
async def test_contracts_end_with_an_agent_that_is_removed(world, gone, left):
    contract, other = await agreed(world), await agreed(world)
    over = await world.ask(EndContract(principal=AgentId("lab"), collaboration=other.collaboration, reason="enough"))
    peer = await world.connect(left)
    peer.take()
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(gone)))
    ended = await world.store.contract(contract.id)
    assert (ended.standing, ended.by, ended.reason) == (Standing.TERMINATED, ADMIN, f"{gone} was removed")
    assert [parcel.event for parcel in peer.take() if parcel.delivery.cargo is Cargo.CONTRACT] == [ended]
    assert await world.store.contract(other.id) == over
    records = await world.store.audit(subject=contract.collaboration)
    assert [(r.action, r.principal, r.reason) for r in records] == [("contract.end", ADMIN, f"{gone} was removed")]


async def test_a_handshake_with_an_agent_that_was_removed_meanwhile_comes_to_nothing(world):
    question = await world.ask(shakes(world))
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("lab")))
    done = await world.ask(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=True))
    assert (done.answer["fault"]["kind"], await world.store.contracts()) == ("contract", [])


@pytest.mark.parametrize("stopped", [False, True])
async def test_however_many_contracts_end_also_after_a_stop_and_none_of_the_next_agent_of_the_name(stopped):
    world = await World().start()
    await world.add("lab", protocol="a2acp", domain="research")
    await world.add("data", protocol="chiffon", domain="research", work_types=("count",))
    asks = {"intent": "count", "granted": ()}
    for _ in range(200):
        await world.ask(shakes(world, **asks))
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("data")))
    if stopped:
        await world.restart()
    else:
        world.time = Instant(world.time + SECOND)
        await world.add("data", protocol="chiffon", domain="research", work_types=("count",))
        await world.ask(shakes(world, **asks))
    await world.settle()
    standings = [row.standing for row in await world.store.contracts(limit=999)]
    assert standings == [Standing.ACTIVE] * (not stopped) + [Standing.TERMINATED] * 200
    await world.intake.stop()


@pytest.mark.parametrize("gone", ["lab", "data"])
async def test_another_agent_of_the_name_inherits_no_contract(world, gone):
    contract = await agreed(world)
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(gone)))
    world.time = Instant(world.time + SECOND)
    domain = {"lab": "research", "data": "clinic"}[gone]
    await world.add(gone, protocol="a2acp", domain=domain, offers=(PROVISION,))
    wish = world.request(None, principal=AgentId("lab"), type="provision", contract=contract.id, input={"rows": 1})
    fault = await world.refused(wish)
    assert (fault.kind, fault.facts["standing"]) == (Kind.CONTRACT, "terminated")
    ends = EndContract(principal=AgentId(gone), collaboration=contract.collaboration)
    assert (await world.refused(ends)).facts["standing"] == "terminated"


async def test_renewal_keeps_the_relation_and_the_old_terms_for_what_is_on_its_way(world):
    await world.connect("data")
    old = await agreed(world)
    new = await agreed(world, collaboration=old.collaboration)
    assert (new.collaboration, new.id != old.id) == (old.collaboration, True)
    assert (await world.store.contract(old.id)).standing is Standing.SUPERSEDED
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": old.id, "input": {"rows": 1}}
    await world.submit(None, **ask)
    world.time = Instant(world.time + MINUTE)
    assert (await world.refused(world.request(None, **ask))).kind is Kind.CONTRACT


async def test_who_ends_a_collaboration_ends_all_its_contracts(world):
    first = await agreed(world)
    for _ in range(10):
        await agreed(world, collaboration=first.collaboration)
    await world.ask(EndContract(principal=AgentId("data"), collaboration=first.collaboration, reason="enough"))
    assert {row.standing for row in await world.store.contracts()} == {Standing.TERMINATED}
    ask = world.request(None, principal="lab", type="provision", contract=first.id, input={"rows": 1})
    assert (await world.refused(ask)).facts["standing"] == "terminated"


@pytest.mark.parametrize("ended", [False, True])
async def test_what_is_over_when_a_renewal_is_agreed_on_is_not_brought_back(world, ended):
    old = await agreed(world)
    asked = await world.ask(shakes(world, collaboration=old.collaboration))
    if ended:
        await world.ask(EndContract(principal=AgentId("lab"), collaboration=old.collaboration))
    else:
        await agreed(world, collaboration=old.collaboration)
    done = await world.ask(AnswerHandshake(principal=AgentId("data"), question=asked.id, accepted=True))
    standing = Standing.TERMINATED if ended else Standing.SUPERSEDED
    assert (done.answer["fault"]["kind"], done.answer["fault"]["facts"]) == ("contract", {"standing": standing})


async def test_a_renewal_in_another_mode_needs_a_key_of_its_own(world):
    old = await agreed(world, intent="patient", end_to_end=True, secret=Secret(kid="k0", source_key="sk"))
    renewal = {"intent": "patient", "collaboration": old.collaboration}
    fault = await world.refused(shakes(world, **renewal))
    assert (fault.kind, fault.field) == (Kind.FORBIDDEN, "public_key")
    new = await agreed(world, **renewal, secret=SECRET)
    assert (new.end_to_end, new.secret.kid) == (False, "k1")
    late = RotateKey(principal=AgentId("lab"), collaboration=old.collaboration, secret=Secret(kid="k2"))
    assert (await world.refused(late)).kind is Kind.CONFLICT  # made for the contract before


async def test_a_key_that_was_rotated_during_a_renewal_stays_rotated(world):
    old = await agreed(world, intent="patient", secret=SECRET)
    asked = await world.ask(shakes(world, intent="patient", collaboration=old.collaboration))
    new = Secret(kid="k2", locked="y")
    await world.ask(RotateKey(principal=AgentId("lab"), collaboration=old.collaboration, secret=new))
    done = await world.ask(AnswerHandshake(principal=AgentId("data"), question=asked.id, accepted=True))
    assert (await world.store.contract(done.answer["contract_id"])).secret.kid == "k2"


async def test_a_border_that_wants_encryption_wants_it_of_contracts_that_stand(world):
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "input": {"rows": 1}}
    await world.submit(None, **ask)
    await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="clinic", encrypt=True))
    fault = await world.refused(world.request(None, **ask))
    assert (fault.kind, fault.facts) == (Kind.FORBIDDEN, {"contract_id": contract.id})


async def test_a_rotated_key_opens_what_was_on_its_way(world):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    assert (contract.encrypted, contract.secret.target_key) == (True, "tk")
    new = Secret(kid="k2", locked="y")
    rotated = await world.ask(RotateKey(principal=AgentId("lab"), collaboration=contract.collaboration, secret=new))
    assert [secret.kid for secret in rotated.secrets(world.time)] == ["k2", "k1"]
    assert [secret.kid for secret in rotated.secrets(Instant(world.time + MINUTE))] == ["k2"]
    assert rotated.secret.source_key == "sk"


async def test_what_is_personal_is_shut_in_the_file(tmp_path):
    store = SqliteStore(tmp_path / "hub.db", vault=MasterKeys([b"k" * 32]))
    world = await World(store).start()
    await world.add("boss", "orchestrator")
    await world.add("data", protocol="coven", offers=(PATIENT,))
    await world.connect("data")
    words = {"name": "Lovelace's leeches", "description": "Lovelace bled", "thread": "Lovelace-7"}
    scan = FileRef(id="f1", name="Lovelace.png", mime_type="image/png", size=1, sha256="0")
    given = {
        "pinned": "data",
        "type": "patient",
        "input": {"name": "Ada Lovelace"},
        "raw": b"Ada raw",
        "files": (scan,),
    }
    task = await world.submit(None, **given, **words)
    await world.finish("data", task.id, body=b'{"result":{"diagnosis":"consumption"}}')
    told = await store.events(task.id)
    assert msgspec.json.decode(told[0].body)["input"] == {"name": "Ada Lovelace"}
    assert told[0].raw == b"Ada raw"
    before = await world.task(task.id)
    await world.intake.stop()
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    again = SqliteStore(tmp_path / "hub.db", vault=MasterKeys([b"k" * 32]))
    await again.open()
    [listed], _ = await again.tasks(TaskFilter(), after=None, limit=9)
    assert [listed, await again.task(task.id), *await again.find_tasks(task.id[:8], 9)] == [before] * 3
    assert {name: getattr(listed, name) for name in words} == words
    assert ([file.name for file in listed.files], listed.shut) == (["personal"], None)
    async with again.unit() as unit:
        assert (await unit.load([TaskById(task.id)]))[TaskById(task.id)] == [before]
    await again.close()
    assert b"Lovelace" not in kept
    assert b"consumption" not in kept
    assert b"Ada raw" not in kept


@pytest.mark.parametrize("kind", [Kind.UNAVAILABLE, Kind.TIMEOUT, Kind.CONTRACT, Kind.WORK_FAILED, Kind.CANCELLED])
async def test_nobodys_words_about_personal_work_are_in_its_row(world, kind):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "patient", "contract": contract.id, "sealed": True}
    task = await world.submit(None, **ask)
    if kind is Kind.CANCELLED:
        await world.ask(Cancel(principal=AgentId("lab"), task_id=task.id, reason="Lovelace is well"))
    else:
        fault = Fault(kind=kind, message="Lovelace is well", facts={"who": "Lovelace"})
        await world.ask(ReportFault(principal=AgentId("data"), protocol="chiffon", task_id=task.id, fault=fault))
    row = await world.task(task.id)
    assert (row.fault.kind, b"Lovelace" in msgspec.json.encode(row)) == (kind, False)


async def test_personal_work_is_on_record_when_it_is_taken_and_only_then(world):
    contract = await agreed(world, intent="patient", secret=SECRET)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "patient", "contract": contract.id}
    await world.refused(world.request(None, **(ask | {"type": "provision"})))
    await world.submit(None, **ask)
    records = [r for r in await world.store.audit(limit=1000) if r.action == "pii.request"]
    assert [(r.principal, r.outcome, r.subject) for r in records] == [("lab", "accepted", contract.id)]


@pytest.mark.parametrize("severity", ["low", "critical"])
async def test_an_error_report_about_personal_work_tells_everybody_no_words_of_it(world, severity):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    task = await world.submit(None, principal="lab", protocol="a2acp", type="patient", contract=contract.id)
    for named in (task.id, None):
        fault = Fault(kind=Kind.TIMEOUT, message="Lovelace is well")
        report = {"error_id": f"about {named}", "error_type": "TIMEOUT"}
        said = {"severity": Severity(severity), "report": report, "fault": fault, "task_id": named}
        await world.ask(ReportError(principal=AgentId("data"), **said))
    entity = await world.store.entity(f"{Registry.AGENT.value}/data")
    assert [error["message"] for error in entity.value["errors"]] == ["[personal]"] * 2
    assert b"Lovelace" not in msgspec.json.encode(await world.task(task.id))


async def test_options_of_a_personal_question_are_not_repeated(world):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    task = await world.submit(None, principal="lab", protocol="a2acp", type="patient", contract=contract.id)
    ask = Ask(question="who?", options=("Lovelace", "Byron"))
    asked = await world.ask(AskPerson(principal=AgentId("data"), request_id="q", ask=ask, task_id=task.id))
    refused = await world.refused(Answer(principal=ADMIN, question=asked.id, answer="Babbage"))
    assert refused.message == "the answer must be one of its options"


async def test_a_revoked_token_is_remembered_over_a_restart_and_forgotten_when_it_would_be_over():
    world = await World().start()
    await world.add("lab", protocol="a2acp", domain="research")

    def revoke(jti: str, seconds: int) -> RevokeToken:
        until = Instant(world.time + seconds * SECOND)
        return RevokeToken(principal=ADMIN, agent=AgentId("lab"), jti=jti, until=until)

    await world.ask(revoke("old", 60))
    await world.ask(revoke("new", 600))
    await world.restart()
    assert [one.jti for one in world.intake.agent(AgentId("lab")).revoked] == ["old", "new"]
    world.time = Instant(world.time + MINUTE)
    await world.ask(revoke("new", 600))
    assert [one.jti for one in world.intake.agent(AgentId("lab")).revoked] == ["new"]
    for n in range(255):
        await world.ask(revoke(f"t{n}", 600))
    assert (await world.refused(revoke("one more", 600))).kind is Kind.CONFLICT
    await world.intake.stop()
