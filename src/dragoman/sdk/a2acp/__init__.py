"""A2acp, as an agent, as a client, and as both over one link: contracts, tokens, seals.

words      an agent's words: a link over a channel    client     a caller with a link of its own
requests   what is asked of an agent                  caller     discover, shake hands, call under the contract
answers    work without success, by its codes         calls      one call, as it is heard of
payloads   hints as capabilities, results as payloads failures   the eight codes as exceptions
talk       who we are: envelopes, tokens, seals       relations  contracts by target, intent and mode
purse      tokens                                     keyring    keys of collaborations
channel    out by POST, in by poll or WebSocket       io         the bytes of it
"""
