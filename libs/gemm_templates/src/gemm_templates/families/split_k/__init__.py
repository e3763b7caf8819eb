"""K shared among programs, one launch: few tiles and a long K."""
