"""Attacks by a2acp agents: forged and stolen tokens, replays, hostile schemas, other people's contracts, broken seals,
personal data in clear, floods, and borders between domains. Whatever is tried, honest agents are served afterwards.

What such a token or seal is worth alone is shown in `credentials`; here it is brought to a hub's endpoints.
"""
