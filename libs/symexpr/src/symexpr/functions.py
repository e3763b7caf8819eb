"""Integer functions over sympy, with the semantics of Python's operators for every sign.

They fold literals and apply the laws that hold for all integers; laws that need a range are in
`symexpr.rules`. A divisor is taken to be non-zero: `FloorDiv(s*i, s) -> i`."""

from symexpr import choice, division, scalars
from symexpr.structure import Applied

FUNCTIONS: dict[str, type[Applied]] = {
    name: function
    for module in (division, choice, scalars)
    for name, function in vars(module).items()
    if isinstance(function, type)
    and issubclass(function, Applied)
    and function.__module__ == module.__name__
    and not name.startswith("_")
}
