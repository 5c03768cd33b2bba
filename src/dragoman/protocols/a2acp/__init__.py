"""A2ACP as pure values. No signature is made or checked here, and nothing is encrypted: keys live in `security`.

types       the envelope, and the claims of a token    codec       bytes ⇄ values, and versions
mapping     wire message ⇄ message                     errors      the eight codes ⇄ faults
intents     requests to the broker; who may send what  contracts   the terms of two agents
sealing     what encryption is bound to                features    what the protocol can carry
published   the document's schema                      flow        a conversation, as a file

Decisions are cited by number (D1 … D19).
"""
