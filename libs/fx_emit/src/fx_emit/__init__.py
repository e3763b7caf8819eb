"""Host programs as torch.fx graph modules."""
