"""Every mistake that this library reports, one class each."""


class CppEmitError(Exception):
    """Base of all errors of cpp_emit."""


class UnsupportedOp(CppEmitError):
    """An op of the program has no C++ form."""


class UnsupportedArgument(CppEmitError):
    """An argument of an extern call or a launch cannot be passed from C++."""


class SchemaError(CppEmitError):
    """An operator schema cannot be read, or a call does not fit it."""


class UnboundSymbol(CppEmitError):
    """An expression uses a symbol that no parameter of the program defines."""


class UndefinedName(CppEmitError):
    """An op uses a tensor name that nothing defined before it."""


class BinaryError(CppEmitError):
    """A kernel binary is missing or needs something that the launcher does not give."""


class CompilerNotFound(CppEmitError):
    """No C++ compiler on this machine."""


class TorchNotFound(CppEmitError):
    """The headers and libraries of an installed torch were not found."""


class CompilerKilled(CppEmitError):
    """A signal ended the C++ compiler, as where there is not enough memory for it."""


class BuildFailed(CppEmitError):
    """The C++ compiler refused the text."""


class LoadError(CppEmitError):
    """A shared library cannot be loaded, or is not of the given program."""


class MissingConstant(CppEmitError):
    """A constant that the program names was not given."""


class MissingCallback(CppEmitError):
    """The program calls back into Python and no function was given for it."""


class InputError(CppEmitError):
    """The arguments of a call differ in number or kind from the parameters of the program."""


class CallbackFailed(CppEmitError):
    """A Python callback gave something else than the program takes."""
