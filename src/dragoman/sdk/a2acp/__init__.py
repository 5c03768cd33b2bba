"""A2acp, as an agent, as a client, and as both over one link: contracts, tokens, seals.

mapping      an agent's link over a channel             client     a caller with a link of its own
requests     what is asked of an agent, and refusals    caller     discover, shake hands, call under the contract
payloads     hints as capabilities, results as payloads calls      one call, and its events
identity     who we are: envelopes, tokens, seals       relations  contracts by target, intent and mode
token_cache  tokens, until they expire                  keyring    keys of collaborations
channel      out by POST, in by poll or WebSocket       io         its bytes
"""
