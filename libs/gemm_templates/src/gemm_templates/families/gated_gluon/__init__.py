"""`gate(a @ b) * (a @ b2)` by warps that have roles: Hopper."""
