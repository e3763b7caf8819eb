"""The forms of a Triton kernel, one a file: which tiles a program has, and what it does with them.

`kernel` (flat, and what all share) <- `pairs`, `plane`, `lists`; `rows` <- `persistent` <- `walk`,
`totals`, `looped`; `reductions` and `scans` are what rows are folded with, `check` what a schedule
must keep to."""
