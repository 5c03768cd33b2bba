"""A2acp, as an agent, as a client, and as both over one link: contracts, tokens, seals.

mapping      an agent's link over a channel             client     a caller with a link of its own
requests     what is asked of an agent                  caller     discover, shake hands, call under the contract
answers      work without success, by its codes         calls      one call, and its events
payloads     hints as capabilities, results as payloads relations  contracts by target, intent and mode
identity     who we are: envelopes, tokens, seals       keyring    keys of collaborations
token_cache  tokens, until they expire                  channel    out by POST, in by poll or WebSocket; io: its bytes
"""
