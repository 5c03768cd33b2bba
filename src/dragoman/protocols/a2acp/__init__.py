"""A2ACP as pure values. No signature is made or checked here and nothing is encrypted: keys live in `security`.

types       the envelope, and what a token says       codec       bytes to values and back
intents     what an agent asks of the broker itself   errors      the eight codes
admission   who may say what, and when                versions    who understands whom
contracts   the terms of two agents                   sealing     what encryption is bound to
published   the document's schema                     flow        a conversation, as a file
mapping     wire message ⇄ message

Decisions are cited by number (D1 … D19).
"""
