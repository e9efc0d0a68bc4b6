"""Lists the benchmarks (make bench)."""

from __future__ import annotations

import ast
from pathlib import Path


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        if path.stem != "harness":
            told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            print(f"make bench NAME={path.stem:<12} {told.partition(chr(10))[0].partition(' (make')[0]}")


if __name__ == "__main__":
    main()
