"""Steps and tiles that schedules on CUDA share, most of them those of matrix products."""
