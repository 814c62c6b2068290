"""Turning benchmarks and tuning logs into one HTML page that needs nothing else: `tvmconv report`."""
