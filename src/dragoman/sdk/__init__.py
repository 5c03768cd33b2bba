"""The SDK: one agent or client, any protocol.

    agent.py     what an agent does          client.py  sync.py       calling agents
    task.py  sync_task.py  the work in hand            client_api.py            over the management API
    signature.py type hints as contract      client_chiffon.py        in chiffon
    outcome.py   how work ends               events.py                what a client is told
    desk.py      from request to outcome     address.py               where the hub is
    speech.py    what is said meanwhile      calls.py                 one call, as it is heard of
    mailbox.py   what must reach the hub     links.py                 the port, and its words
    journal.py   what survives a restart     words_chiffon.py         the words in chiffon
    engine.py    link, heartbeat, end        io_chiffon_http/ws.py    the bytes
    transcripts.py  what is said again       words_coven.py  calls_coven.py  io_coven.py  client_coven.py
                 where there are no receipts grpc_channel.py          the same in coven, over gRPC
    io_websocket.py  one WebSocket           words_forge.py  calls_forge.py  io_forge_ws.py  client_forge.py
                                             talk_forge.py  io_stdio.py       the same in forge; over pipes
    exchange.py   help, handoffs, letters    words_agentmsg.py  talk_agentmsg.py  io_agentmsg.py
    listening.py  the handlers for them      client_agentmsg.py  calls_agentmsg.py      the same in agentmsg
    bulletin.py   what it says of itself     shared.py                what all agents share
    relations.py  contracts, and handshakes  words_a2acp.py  talk_a2acp.py  channel.py  io_a2acp.py
    keyring.py  purse.py  keys, and tokens   caller_a2acp.py  calls_a2acp.py  client_a2acp.py  the same in a2acp
    declared.py   hints as capabilities      failures.py  answers_a2acp.py    its error codes, both ways
    helping.py    help as work               requests_a2acp.py        what is asked
    peers.py  vitals.py  trouble.py          values of those
    trace.py  world.py  errors.py            trace, time and chance, what is raised
    secure.py                                whom we believe by TLS, and what we show

Stands on `wire` and `protocols`; knows nothing of the hub's core. Import from `dragoman`.
"""
