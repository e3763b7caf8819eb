"""Passes over graphs, one a file: frozen dataclasses with `run(graph) -> graph`."""
