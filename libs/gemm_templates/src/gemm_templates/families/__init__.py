"""A folder a family: its kernel, which compile workers import without torch, and its host part."""
