"""Arguments -> a launch: checks, alignment, packing, and the call of the CUDA driver."""

from triton_rt.launch.dispatch import Dispatch, Entry, make_dispatcher, unload

__all__ = ["Dispatch", "Entry", "make_dispatcher", "unload"]
