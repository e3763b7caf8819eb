"""Host programs as C++ shared libraries."""
