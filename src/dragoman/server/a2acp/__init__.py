"""A2acp's endpoints on the HTTP port: the broker of the document.

handler        the way of a message, for both transports      http       HTTP: messages, polls, tokens, declarations
judge          contract, task and payload of a message        session    WebSocket
inbound        message → command (pure)                       outbound   outgoing message → message (pure)
contracts      rows ⇄ the document's values (pure)            tokens     the auth service
correlation    what agents were asked, and its names          contract_keys   terms and keys of contracts in use
"""
