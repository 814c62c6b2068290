"""Whole networks, measured beside their peers: models, contenders, building ahead, and timing."""
