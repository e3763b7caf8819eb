"""Loop nests printed as C++ functions that run on the CPU: vectors along memory, threads over what
is left. It writes text; a C++ compiler makes a library of it."""

from cpp_loops.emit import CppKernel as CppKernel
from cpp_loops.emit import emit as emit
from cpp_loops.errors import CppLoopsError as CppLoopsError
from cpp_loops.errors import UnsupportedKernel as UnsupportedKernel
from cpp_loops.units import WAYS as WAYS
from cpp_loops.units import headers as headers
from cpp_loops.units import translation_unit as translation_unit
