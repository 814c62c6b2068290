"""Two layers on images of one pixel in one kernel for a GPU."""
