"""Messages between agents, in agentmsg: no other protocol has agents that converse. Handlers see the values of `peers`.

peer_requests  help and handoffs that tasks ask for, direct messages
peer_handlers  the agent's own handlers for what others ask; help as a task, for protocols without help
status         heartbeats, status reports, error reports, direct messages
"""
