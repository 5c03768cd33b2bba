"""Coven, as an agent and as a client: over gRPC, which only `channel` loads, and only when an address says `coven`.

words    what is said and heard: values only          client       a message in, its events out
calls    one call, as it is heard of                  transcripts  what is said again, for there are no receipts
io       an agent's link: one stream                  channel      the way to the gRPC port
"""
