"""Coven, as an agent and as a client: over gRPC, which only `channel` loads, and only when an address says `coven`.

mapping  messages as coven's, and back                client       a message in, its events out
calls    one call, and its events                     transcripts  what is sent again, for there are no receipts
io       an agent's link: one stream                  channel      the way to the gRPC port
"""
