"""ATen graphs lowered to loop nests."""
