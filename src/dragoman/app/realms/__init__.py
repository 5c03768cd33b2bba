"""One address for all realms of a PostgreSQL: `dragoman realms serve`.

`route` says which realm a request is for, `places` which nodes a realm has, `front` carries HTTP and all that begins as
HTTP, `grpc_front` carries gRPC. The front decides nothing else: the node that gets the bytes authenticates them. It
keeps nothing, so there may be several.
"""
