"""Passes over functions with sizes that are known only when they run."""
