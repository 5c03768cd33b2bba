"""Where a protocol's words become the hub's commands, and the hub's deliveries become words again.

Pure: values and `now` come in, values go out. Five spokes, one per protocol; none of them knows another.
"""
