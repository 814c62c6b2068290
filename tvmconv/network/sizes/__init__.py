"""Facts about open sizes, and the conditions that the sizes of a call have to meet."""
