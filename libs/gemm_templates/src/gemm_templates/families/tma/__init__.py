"""Persistent programs over tensor descriptors: Hopper and later."""
