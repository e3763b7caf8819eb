"""The user's own Triton kernels: their launches, texts and operators."""
