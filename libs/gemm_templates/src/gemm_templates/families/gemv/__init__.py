"""One to 64 rows: the time is that of reading `b` once."""
