"""The agents of the demo. The hub adds them under these ids; the planner calls them by them."""

from __future__ import annotations

from typing import NamedTuple

DOMAIN = "demo"
"""The mark of a demo agent at the hub: an agent of the same id without it is a user's own."""
RESEARCH_DOMAIN, CLINIC = "demo-research", "demo-clinic"
"""Two that may work together in the demo. They have names of their own: the policy must not let real agents in."""


class DemoAgent(NamedTuple):
    name: str
    id: str
    kind: str
    does: str
    protocol: str = "chiffon"
    domain: str = DOMAIN
    grants: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """This very agent, in the words of a chiffon client."""
        return f"{self.kind}/{self.id}"


INFRA = DemoAgent("infra", "infra-1", "infra", "runs playbooks, and asks before it stops a database")
CODE = DemoAgent("code", "code-1", "code", "reviews changes and runs tests")
RESEARCH = DemoAgent("research", "researcher", "research", "looks things up, thinking aloud", "coven")
SCRIBE = DemoAgent("scribe", "scribe", "scribe", "writes reports; has the researcher look things up", "forge")
EDITOR = DemoAgent(
    "editor", "editor", "editor", "drafts release notes; asks the reviewer, and hands long ones over", "agentmsg"
)
REVIEWER = DemoAgent(
    "reviewer", "reviewer", "reviewer", "helps the editor, and takes over what is too long for it", "agentmsg"
)
LAB = DemoAgent(
    "lab", "lab", "lab", "plans studies; reads another domain's records under a contract", "a2acp", RESEARCH_DOMAIN,
    ("read:records",),
)  # fmt: skip
RECORDS = DemoAgent("records", "records", "records", "gives records out, encrypted", "a2acp", CLINIC)
LEAD = DemoAgent("lead", "lead", "lead", "ships releases: has all the others do their part, as one trace", "coven")
PLANNER = DemoAgent("planner", "planner", "orchestrator", "gives the others something to do")

AGENTS = (INFRA, CODE, RESEARCH, SCRIBE, EDITOR, REVIEWER, RECORDS, LAB, LEAD, PLANNER)
"""In the order in which they start."""
