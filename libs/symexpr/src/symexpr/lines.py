"""Text that others wrote, made part of one line: a path, an operator's name, a message."""

import re

_SHORT = {"\n": "\\n", "\r": "\\r"}
_LONG = {short: char for char, short in _SHORT.items()}
# What ends a comment or joins its line to the next (`*/`, the trigraph of a backslash), and what
# the first lines of a Python file mean by a comment (PEP 263).
_MEANT = re.compile(r"\\|(?<=\*)/|(?<=\?\?)/|(?<=coding)[:=]|^ +| +$")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nr]))")


def one_line(text: str) -> str:
    r"""The text as it may stand in a comment of Python, Triton, C++ or an IR: on one line, which
    it neither ends nor continues, whatever it says. `from_one_line` is the inverse.

    Printable characters stay. What is not printable (line and paragraph separators, controls,
    bidirectional marks, surrogates), backslashes, spaces at the ends, the slash of `*/` and of
    `??/`, and what would name the encoding of a file, are written as `\n`, `\r`, `\x0b`, `\u2028`
    or `\U000e0001`.

    >>> print(one_line("a.py\nimport os"), one_line("C:\\a\\"))
    a.py\nimport os C:\x5ca\x5c
    """
    text = _MEANT.sub(lambda found: "".join(map(_escaped, found[0])), text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def from_one_line(text: str) -> str:
    """What `one_line` was given. A backslash that begins no escape stays."""
    return _ESCAPE.sub(lambda m: _LONG.get(m[0]) or chr(int(m[1] or m[2] or m[3], 16)), text)


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
