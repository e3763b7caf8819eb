"""What the docs site has beside the files of `docs/`: a page a package, which is its README, its
changelog and an API reference from docstrings; the root README as the first page; and the order of
all pages. A new package or page needs no entry anywhere. (A hook of MkDocs: see `mkdocs.yml`.)"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


@event_priority(100)  # before mkdocstrings reads the folders of sources
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the order of the pages, and where the packages' sources are."""
    handlers = config.plugins["mkdocstrings"].config["handlers"]
    sources = [str(member / "src") for member in members().values()]
    handlers.setdefault("python", {})["paths"] = sources
    config.nav = [
        {"Start": "index.md"},
        {"The map": "architecture.md"},
        {"What each package promises": "rooms.md"},
        {"How to": pages("how-to")},
        {"Packages": [{room: pages_of(room)} for room in members()]},
        {"Operators": "coverage.md"},
        {"Measurements": pages("measurements")},
        {"Contributing": "contributing.md"},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made of files outside of `docs/`."""
    made = {
        "index.md": page("README.md", "index.md"),
        "contributing.md": page("CONTRIBUTING.md", "contributing.md"),
    }
    for room, member in members().items():
        folder = member.relative_to(ROOT)
        readme, api, changes = pages_of(room)
        made[readme] = page(f"{folder}/README.md", readme)
        made[api] = f"# API of {room}\n\n::: {room}\n"
        made[changes] = page(f"{folder}/CHANGELOG.md", changes)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Turns links of the pages in `docs/` to files outside of it into pages or plain text."""
    uri: str = page.file.src_uri  # type: ignore[attr-defined]  # MkDocs's Page is untyped here
    generated = page.file.generated_by is not None  # type: ignore[attr-defined]  # as above
    return markdown if generated else relinked(markdown, f"docs/{uri}", uri)


def members() -> dict[str, Path]:
    """The folder of each member of the workspace, by the name of its package."""
    faces = sorted([*ROOT.glob("libs/*/src/*/__init__.py"), *ROOT.glob("apps/*/src/*/__init__.py")])
    return {face.parent.name: face.parents[2] for face in faces}


def pages_of(room: str) -> list[str]:
    """The pages of a package: its README, its API and its changes."""
    return [f"packages/{room}/{name}.md" for name in ("index", "api", "changes")]


def pages(folder: str) -> list[str]:
    """The pages of a folder of `docs/`, its index first."""
    found = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}/{name}" for name in sorted(found, key=lambda name: name != "index.md")]


def page(source: str, uri: str) -> str:
    """The text of a file of the repository as the page `uri`."""
    return relinked((ROOT / source).read_text(), source, uri)


def relinked(text: str, source: str, uri: str) -> str:
    """`text` of the file `source` with its links as they are on the page `uri`: to a page of the
    site, or without a link where the site has none."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = page_of(path)
        if found is None:
            return label
        return f"[{label}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{anchor})"

    return LINK.sub(link, text)


def page_of(path: str) -> str | None:
    """The page of a file or folder of the repository; None where there is none.

    >>> page_of("README.md"), page_of("docs/architecture.md"), page_of("conftest.py")
    ('index.md', 'architecture.md', None)
    """
    if path in ("README.md", "CONTRIBUTING.md"):
        return {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}[path]
    if path.startswith("docs/") and path.endswith(".md"):
        return path.removeprefix("docs/")
    for room, member in members().items():
        folder = str(member.relative_to(ROOT))
        if path in (folder, f"{folder}/README.md"):
            return pages_of(room)[0]
        if path == f"{folder}/CHANGELOG.md":
            return pages_of(room)[2]
    return None
