"""Schedules for the operators between convolutions."""
