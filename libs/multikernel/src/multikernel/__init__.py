"""Several kernels for one job, chosen by size at run time."""
