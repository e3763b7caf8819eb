"""Rewrites the source of a jit function so that Python evaluates it as Triton's compiler would.

    x = value              ->  x = __to_tensor__(value)      (numbers become typed scalars)
    if a / while a / a ? b ->  if __truth__(a) ...           (the value of a scalar tensor)
    a and b                ->  __and__(lambda: a, lambda: b) (elementwise on tensors)
    not a                  ->  __not__(a)

The names are bound in the globals of the rewritten function."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


class _Rewriter(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = _call("__to_tensor__", node.value)
        return node

    def _test(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> ast.AST:
        self.generic_visit(node)
        node.test = _call("__truth__", node.test)
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _test

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        thunks = [ast.Lambda(args=none, body=value) for value in node.values]
        return _call("__and__" if isinstance(node.op, ast.And) else "__or__", *thunks)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("__not__", node.operand) if isinstance(node.op, ast.Not) else node


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(args), keywords=[])


def rewrite(
    fn: Callable[..., Any], namespace: dict[str, Any], source: tuple[list[str], int] | None = None
) -> Callable[..., Any]:
    """The rewritten function, with `namespace` as its globals and without its decorators.

    source: what `inspect.getsourcelines` says of it, where that is known. Line numbers in
    tracebacks are those of the original file. Default values are the original's."""
    lines, first = source or inspect.getsourcelines(fn)
    tree = ast.parse("\n" * (first - 1) + textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef), f"{fn} is not a plain function"
    definition.decorator_list = []
    # Annotations and defaults were evaluated once, where the function was defined.
    for arg in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs):
        arg.annotation = None
    definition.returns = None
    definition.args.defaults = [ast.Constant(None) for _ in definition.args.defaults]
    definition.args.kw_defaults = [d and ast.Constant(None) for d in definition.args.kw_defaults]
    tree = ast.fix_missing_locations(_Rewriter().visit(tree))
    code = compile(tree, inspect.getsourcefile(fn) or "<triton kernel>", "exec")
    local: dict[str, Any] = {}
    exec(code, namespace, local)
    out: Callable[..., Any] = local[definition.name]
    namespace.setdefault(definition.name, out)
    return out
