"""tvmconv behind other projects' interfaces: ONNX's backend and quantization, and the backend of torch.compile."""
