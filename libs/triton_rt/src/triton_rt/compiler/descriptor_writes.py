"""Which descriptor parameters a kernel writes through: what its IR says, not its source."""

import re
from typing import Any

from triton._C.libtriton import ir, passes

_ENTRY = re.compile(r"tt\.func public @\w+\((.*)\)")
_NAME = r"(%[\w$.-]+)"
_PARAMETER = re.compile(rf"{_NAME}: !tt\.tensordesc<")
_ARGUMENT = re.compile(rf"{_NAME}: ")
_WRITE = re.compile(
    rf"tt\.descriptor_(?:store|scatter|reduce (?:\w+,))\s*{_NAME}"
    rf"|ttng\.async_tma_(?:copy_local_to_global|scatter|reduce(?: \w+,)?)\s*{_NAME}"
)
_MADE = re.compile(rf"{_NAME} = tt\.make_tensor_descriptor")
_SPECIALIZE = re.compile(r"ttg\.warp_specialize\(([^)]*)\)")
_PARTITION = re.compile(r"^\s*partition\d+\((.*)\) num_warps\(")
_AFTER = re.compile(r"^\s*\} : \(")  # the end of the partitions


def written_descriptors(module: Any, gluon: bool) -> set[int]:
    """The numbers of the descriptor parameters of a kernel's first IR, among its descriptors, that
    it stores or reduces through; all of them where a write cannot be followed to one."""
    text = module.str_nodebug()
    if "!tt.tensordesc<" not in text:
        return set()
    manager = ir.pass_manager(module.context)
    (passes.gluon if gluon else passes.common).add_inliner(manager)
    manager.run(module, "inline")
    return _written(module.str_nodebug())


def _written(text: str) -> set[int]:
    """Of the text of an inlined module. The roles of warps are regions with names of their own: a
    `partition` gets what `warp_specialize` lists, in order."""
    entry = _ENTRY.search(text)
    params = _PARAMETER.findall(entry[1]) if entry else []
    everything = set(range(len(params)))
    if text.count("tt.func ") > 1:
        return everything
    outer: dict[str, int | None] = {name: i for i, name in enumerate(params)}  # None: made here
    known, captured, found = outer, list[str](), set[int]()
    for line in text.splitlines():
        if (listed := _SPECIALIZE.search(line)) is not None:
            captured = [name.strip() for name in listed[1].split(",") if name.strip()]
        elif (partition := _PARTITION.match(line)) is not None:
            names = _ARGUMENT.findall(partition[1])
            if len(names) != len(captured):
                return everything
            known = {n: outer[c] for n, c in zip(names, captured, strict=True) if c in outer}
        elif _AFTER.match(line):
            known = outer
        if (made := _MADE.search(line)) is not None:
            known[made[1]] = None
        for either in _WRITE.findall(line):
            name = either[0] or either[1]
            if name not in known:
                return everything
            if (number := known[name]) is not None:
                found.add(number)
    return found
