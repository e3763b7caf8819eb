"""C++ identifiers for the names of a program."""

import re

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t
    char16_t char32_t class compl concept const consteval constexpr constinit const_cast
    continue co_await co_return co_yield decltype default delete do double dynamic_cast else
    enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast requires return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor xor_eq linux unix
    main std int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t
"""

# What the emitted text itself calls; a local variable of that name would hide it.
_RUNTIME = """
    cpp_emit run self in out fail ok dtype cpu cuda name Ints Tensor Device empty view reuse
    copy list describe check_kind check_layout check_range conform same_steps narrow bits
    tensor integer real boolean code none some device string list_of items integers
    take_tensor take_list take_tensors Stack call shim Instance Arguments Results NoGrad
    Library library call_python num_constants new_kernels Kernels Kernel launch stream
    symexpr pointer CudaScope torch_cuda copy_back kernel_table TORCH_CUDA check_arguments
    check_count Descriptor reads writes call_subgraph repeat scan truth Tensors
"""


class Names:
    """Distinct C++ identifiers, one for each name given; the name itself wherever it may be."""

    def __init__(self) -> None:
        self._taken = {*_KEYWORDS.split(), *_RUNTIME.split()}
        self._of: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._of:
            self._of[name] = self.fresh(name)
        return self._of[name]

    def fresh(self, name: str) -> str:
        """An identifier that no other call gives: that of `name` is `self[name]`."""
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        # Double underscores, and single ones in front, belong to the language.
        base = re.sub(r"__+", "_", base).strip("_") or "v"
        if base[0].isdigit():
            base = f"v{base}"
        candidate, count = base, 1
        while candidate in self._taken:
            candidate = f"{base}_{count}"
            count += 1
        self._taken.add(candidate)
        return candidate
