"""The IR itself: nodes, text, rules, meaning, and the facts and rewrites that all passes share.

`loop_ir` has what users of the library need. What is added here is for code that inspects or
rewrites kernels, as passes and code generators do.
"""

from loop_ir.ir.affine import linear, product, substitute
from loop_ir.ir.analysis import (
    at_hints,
    defined_values,
    hints_of,
    reads,
    scans,
    statements,
    traffic,
    used_values,
    walk,
    writes,
)
from loop_ir.ir.renaming import rename_defs, rename_uses, renumber
from loop_ir.ir.rewrite import map_expressions, ranges_of, simplify_with

__all__ = [
    "at_hints",
    "defined_values",
    "hints_of",
    "linear",
    "map_expressions",
    "product",
    "ranges_of",
    "reads",
    "rename_defs",
    "rename_uses",
    "renumber",
    "scans",
    "simplify_with",
    "statements",
    "substitute",
    "traffic",
    "used_values",
    "walk",
    "writes",
]
