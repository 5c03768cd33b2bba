"""Coven at the hub, over gRPC.

inbound, outbound   wire messages ⇄ commands and outgoing messages; pure
endpoint            starts and stops the gRPC server, admits agents
session             one agent's stream                callers         the calls of `coven.CovenClient`
authentication      who connects                      grpc_port       limits, TLS, metadata, how a call ends

Nothing is imported here: `dragoman translate` uses `inbound` and `outbound` without gRPC, which is slow to load.
"""
