"""Dense convolution on the CUDA cores of NVIDIA GPUs, as a matrix product: direct, and over im2win's windows."""
