"""Random programs against eager: `python tests/fuzz/run.py --seed 0 --count 1000`.

Each seed is a program; four seeds that follow each other share a setting, are compiled as one, and
one by one where that fails. Failures are grouped by class; the summary at the end has each class
with its number, its seeds and the text of an example, made small while time is left. The examples
are written to `--out` too, as files for `compile-cli run FILE:Graph` and `run.py --replay FILE`.
Exit code: 1 where something failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=300, help="how many programs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=1e6,
        help="all ends then; the last seventh is for making failures small",
    )  # fmt: skip
    parser.add_argument(
        "--group", type=int, default=4, choices=[1, 2, 4], help="programs compiled as one"
    )
    parser.add_argument("--elements", type=int, default=160, help="of the largest tensor")
    parser.add_argument("--length", default="5,40", help="fewest and most operators")
    parser.add_argument("--emit", choices=["fx", "hop", "cpp"])
    parser.add_argument("--entry", choices=["compile", "backend"])
    parser.add_argument("--dynamic", action=argparse.BooleanOptionalAction)
    parser.add_argument("--grad", action=argparse.BooleanOptionalAction)
    parser.add_argument("--minimise", type=float, default=60.0, help="seconds for each class")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a group")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--replay", type=Path, help="check one written file and say what it does")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # The kernels of a GPU, unless asked for those of the CPU (`auto`).
    os.environ.setdefault("COMPILE_CLI_CPU_KERNELS", "interpreter")
    if options.worker:
        from fuzzer.group import serve

        return serve(options)
    if options.replay:
        return _replay(options)
    from fuzzer.lead import lead

    return lead(options, [sys.executable, str(Path(__file__).resolve()), "--worker", *sys.argv[1:]])


def _replay(options: argparse.Namespace) -> int:
    from fuzzer.check import check
    from fuzzer.program import Loaded, completed

    with tempfile.TemporaryDirectory() as cache:
        outcome = check(Loaded(completed(options.replay.read_text()), options.device), cache)
    sys.stdout.write(f"{outcome}\n")
    return 1 if outcome.failure else 0


if __name__ == "__main__":
    sys.exit(main())
