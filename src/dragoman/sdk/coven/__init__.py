"""Coven, as an agent and as a client: over gRPC, which only `channel` loads, and only when an address says `coven`.

responses  the engine's messages ⇄ coven's            client       a message in, its events out
calls      one call, and its events                   transcripts  what is sent again, because there are no receipts
io         an agent's link: one stream                channel      the channel to the gRPC port
"""
