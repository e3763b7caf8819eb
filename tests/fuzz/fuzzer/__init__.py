"""Random PyTorch programs, and what they must do when compiled: what eager does."""
