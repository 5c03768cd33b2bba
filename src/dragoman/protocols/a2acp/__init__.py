"""A2ACP as pure values: envelope, tokens' claims, contracts, schemas, replay, limits, both ends of a link.

`types` has the envelope, `intents` what the broker itself is asked, `errors` the eight codes, `codec` bytes and values,
`versions` who understands whom, `claims` what a token says, `sealing` what encryption binds, `contracts` how two agents
come to terms, `replay` that a message counts once, `connection` and `events` one end of a
link. No signature is made or checked and nothing is encrypted here: keys live above. Decisions are cited by number
(D1 … D19); requirements are listed in `tests/conformance/a2acp/requirements.py`.
"""
