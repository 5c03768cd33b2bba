"""Benchmarks: ours always beside a peer and beside the raw limit, in one run. See bench/README.md."""
