"""Comments of the program beside the lines of generated code."""

import re
from dataclasses import dataclass

from symexpr import one_line

_ASSIGNMENT = re.compile(r"\s*(\w+)(?:\s*:\s*[^=]+)? = ")


@dataclass
class CommentWriter:
    """A code transformer of `torch.fx`: adds `# comment` to the line that assigns the node of a
    name, and lines of `headings` before it. Both may say anything."""

    comments: dict[str, str]
    headings: dict[str, list[str]]

    def __call__(self, body: list[str]) -> list[str]:
        lines: list[str] = []
        for line in "".join(body).split("\n"):
            found = _ASSIGNMENT.match(line)
            name = found[1] if found else ("return" if line.startswith("return ") else "")
            lines += [f"# {one_line(text)}".rstrip() for text in self.headings.get(name, ())]
            comment = self.comments.get(name)
            lines.append(f"{line}  # {one_line(comment)}" if comment else line)
        return ["\n".join(lines)]
