"""One file a family, whose `table` has its lowerings; `TABLE` is their union."""

from importlib import import_module
from pkgutil import iter_modules

from aten_lowering.registry import Table

TABLE = Table()
for _file in iter_modules(__path__):
    TABLE.update(getattr(import_module(f"{__name__}.{_file.name}"), "table", Table()))
