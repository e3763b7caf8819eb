"""`gate(a @ b) * (a @ b2)` by persistent programs over tensor descriptors: Hopper and later."""
