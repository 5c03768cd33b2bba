"""Agentmsg, as an agent and as a client. What agents say to each other in it is in `sdk.conversation`.

link     an agent's messages ⇄ agentmsg's                  client  an agent that assigns tasks to others
session  one connection: each message once; its pipes     entry   agentmsg's row of `sdk.services`
"""
