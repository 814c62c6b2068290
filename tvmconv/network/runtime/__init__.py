"""A built network: its code, its memory and its calls."""
