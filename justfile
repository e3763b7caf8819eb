# `just` lists these; each is one command that also runs without it. (uv tool install rust-just)

_default:
    @just --list

# The whole check, as it runs before a change lands.
check:
    .ci/run

# Tests: all, or those of a folder or file, with pytest's options.
test *ARGS:
    python3 -m uv run pytest {{ARGS}}

# Lint and types, without tests.
lint:
    python3 -m uv run ruff check .
    python3 -m uv run ruff format --check .
    python3 -m uv run mypy
    python3 -m uv run lint-imports --no-cache
    bash .ci/imports

# Lines and habits of each package beside their budget (`--accept`, `--list skips`).
size *ARGS:
    python3 -m uv run python .ci/size.py {{ARGS}}

# The docs site, into build/site; fails on a broken link or reference.
docs:
    python3 -m uv run --all-packages --group docs mkdocs build --strict

# The docs site on http://127.0.0.1:8000, rebuilt as files change.
docs-serve:
    python3 -m uv run --all-packages --group docs mkdocs serve

# A benchmark by name, on a GPU: `just bench encoder`.
bench NAME *ARGS:
    python3 -m uv run python benchmarks/{{NAME}}.py {{ARGS}}
