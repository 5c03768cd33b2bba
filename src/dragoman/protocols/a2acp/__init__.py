"""A2ACP as pure values: the envelope, tokens' claims, contracts.

`types` has the envelope, `intents` what the broker itself is asked, `errors` the eight codes, `codec` bytes and values,
`versions` who understands whom, `claims` what a token says, `sealing` what encryption binds, `contracts` the terms of
two agents, `admission` who may say what and when, `flow` a conversation as a file. No signature is made or checked and
nothing is encrypted here: keys live above. Decisions are cited by number (D1 … D19); requirements are listed in
`tests/conformance/a2acp/requirements.py`.
"""
