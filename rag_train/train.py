"""`rag-train train` as a module, which a launcher starts in each process.

python -m rag_train.train recipes/deeprag_sft.yaml data=sft.jsonl output_dir=runs/sft
accelerate launch --config_file launch/accelerate/zero3.yaml -m rag_train.train recipes/deeprag_sft.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rag_train.cli import app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-train train` with ``arguments``, by default those of the process, and return its exit code."""
    try:
        app.main(["train", *(sys.argv[1:] if arguments is None else arguments)])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
