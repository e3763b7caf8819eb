"""Loop nests over typed buffers, and the fusion scheduler."""
