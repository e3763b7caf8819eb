"""A CUDA compiler for PyTorch: command line and torch.compile backend."""
