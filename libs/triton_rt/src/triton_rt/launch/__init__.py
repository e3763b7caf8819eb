"""Arguments -> a launch: checks, alignment, packing, and the call of the CUDA driver."""

from triton_rt.launch.dispatch import Entry, make_dispatcher

__all__ = ["Entry", "make_dispatcher"]
