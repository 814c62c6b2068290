"""Benchmarks and tuning logs as one HTML page that needs nothing else: `tvmconv report`."""
