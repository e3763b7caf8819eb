"""fp8 with block scales, or summed in f32, by warps that have roles: Hopper."""
