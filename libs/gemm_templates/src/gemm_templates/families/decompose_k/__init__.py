"""Products over parts of K, and a second launch that adds them up."""
