from __future__ import annotations

from wrapper_ir import parse_program, print_program
from wrapper_ir.passes import DedupeKernels

KERNEL = """  kernel {name}(x: *f32 mutated) constants (B={b}) warps {w} stages 3{ctas}:
    # {name} does a thing
    def {name}(x, B):
        return helper_{name2}(x, B)
  end
"""


def run(*kernels: dict[str, object]) -> str:
    text = "program p(x: f32[4] cpu, n: int):\n"
    for k in kernels:
        text += KERNEL.format(**{"b": 1, "w": 4, "ctas": "", "name2": "h", **k})
    names = [str(k["name"]) for k in kernels]
    text += "".join(f"  launch {name} grid (1, 1, 1) (x)\n" for name in names)
    text += f"  if n < 3:\n    launch {names[-1]} grid (2, 1, 1) (x)\n  return ()\n"
    return print_program(DedupeKernels().run(parse_program(text)))


def test_equal_but_for_the_name():
    text = run({"name": "k0"}, {"name": "k1"})
    assert text.count("kernel ") == 1 and text.count("launch k0") == 3 and "k1" not in text


def test_what_makes_kernels_different():
    for other in ({"b": 2}, {"b": 1.0}, {"b": True}, {"w": 8}, {"name2": "g"}, {"ctas": " ctas 2"}):
        assert run({"name": "k0"}, {"name": "k1", **other}).count("kernel ") == 2


def test_a_name_inside_a_longer_name_is_not_the_name():
    text = run({"name": "k", "name2": "k"}, {"name": "j", "name2": "j"})
    assert text.count("kernel ") == 2


def test_a_kernel_named_after_the_function_that_it_calls():
    """`cos` calls `tl.cos` and `log` calls `tl.log`: they were one."""
    text = "program p(x: f32[4] cpu):\n"
    for name in ("cos", "log"):
        text += f"  kernel {name}(x: *f32) warps 4 stages 3:\n"
        text += f"    def {name}(x):\n        return tl.{name}(x)\n  end\n"
    text += "  launch cos grid (1, 1, 1) (x)\n  launch log grid (1, 1, 1) (x)\n  return ()\n"
    program = parse_program(text)
    assert DedupeKernels().run(program) == program


def test_comments_make_no_difference():
    """Layers of a model come from different lines, which kernels cite."""
    body = "    # from {}\n    def {}(x):\n        return x\n  end\n"
    text = "program p(x: f32[4] cpu):\n"
    for name, line in (("k0", "model.py:1"), ("k1", "model.py:2")):
        text += f"  kernel {name}(x: *f32) warps 4 stages 3:\n" + body.format(line, name)
    text += "  launch k0 grid (1, 1, 1) (x)\n  launch k1 grid (1, 1, 1) (x)\n  return ()\n"
    out = print_program(DedupeKernels().run(parse_program(text)))
    assert out.count("kernel ") == 1 and out.count("launch k0") == 2
