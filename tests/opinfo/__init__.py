"""The OpInfo sweep: every operator and module that torch's own tests know, against eager.

`python tests/opinfo --help` runs it; `test_opinfo.py` is the spread that every check runs.
"""
