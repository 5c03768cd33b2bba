"""Coven: a gateway hands one message at a time to an agent, which streams back what it thinks, says and does.

types       the messages, as values         errors      how a stream may be refused, and why an event is ignored
codec       bytes to values and back        state       the life of one stream, as a table
connection  one end of one stream           events      what a connection tells its owner
json_form   the messages as JSON, and its schema
coven.proto the document's messages with our extensions; coven_pb2 is generated from it by `.ci/generate_coven.py`
"""
