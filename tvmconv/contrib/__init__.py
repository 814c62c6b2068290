"""Where Relay's scripts look for the graph executor."""
