"""Coven: a gateway hands one message at a time to an agent, which streams its answer back.

types       the messages, as values          mapping     wire types ⇄ the hub's messages
codec       bytes ⇄ values                   connection  one end of one stream, and its states
errors      what ends a stream               features    what coven can carry
json_form   the messages as JSON, and its schema
coven.proto the document's messages with our extensions; coven_pb2 is generated from it by `.ci/generate_coven.py`
"""
