"""Groups whose sizes only the device knows, over tensor descriptors: Hopper and later."""
