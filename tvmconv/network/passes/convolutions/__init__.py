"""The plan of the layers: which kernel computes each convolution and linear layer, in which layout, in which tensor."""
