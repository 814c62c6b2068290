"""Benchmarks of default configurations and of tuners."""
