"""A2acp, as an agent, as a client, and as both over one link: contracts, tokens, seals.

link       an agent's link                                caller     discover, shake hands, call under the contract
channel    out by POST, in by poll or WebSocket           relations  contracts by target, intent and mode
identity   envelopes, tokens, seals                       keyring    keys of collaborations
entry      the row of `sdk.services`; a client
"""
