"""Measuring of kernels beside their peers: suites of workloads, the peers, and timing that can be trusted."""
