"""One tile a program: any strides, any sizes, batches."""
