"""gRPC's fork handlers crash children that are forked after it was loaded; tests start many, and load it early."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
