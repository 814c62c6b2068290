"""The package in which Relay's scripts look for the graph executor."""
