"""How much arithmetic an epilogue's text is."""

import ast
import functools

# Instructions for an element, beside loads and stores: counted in what the compiler makes of each
# for Hopper. Names are those of `triton.language`.
_CALLS = {
    "erf": 28, "exp": 4, "exp2": 2, "log": 6, "log2": 4, "sigmoid": 10, "tanh": 20, "sin": 20,
    "cos": 20, "sqrt": 6, "sqrt_rn": 10, "rsqrt": 4, "div_rn": 10, "fdiv": 6, "fma": 1,
    "where": 1, "minimum": 1, "maximum": 1, "abs": 1, "floor": 1, "ceil": 1, "softmax": 20,
}  # fmt: skip
# Functions of what groups of elements share: one of a group is no instruction of each.
_SHARED = ("groups_of", "along_groups")


@functools.lru_cache(maxsize=1024)
def instructions(text: str) -> float:
    """Roughly how many instructions an element of the f32 tile takes, from the text of an
    epilogue and its helper functions, each counted once: operators of arithmetic on anything but
    index expressions inside `tl.load` and `tl.store`, and the calls above."""
    total = 0.0
    stack: list[ast.AST] = [ast.parse(text)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef) and node.name in _SHARED:
            continue
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _SHARED:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            total += _CALLS.get(name, 0)
            if name in ("load", "store"):
                stack.extend(node.args[1:])
                continue
        elif isinstance(node, ast.BinOp):
            total += 8 if isinstance(node.op, ast.Div) else 1
        elif isinstance(node, ast.Compare):
            total += 1
        stack.extend(ast.iter_child_nodes(node))
    return total
