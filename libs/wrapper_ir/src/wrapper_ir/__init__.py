"""The host program of a compiled model as data."""
