"""Steps and tiles that schedules of matrix products on CUDA share."""
