"""Persistent programs whose warps have roles: Hopper."""
