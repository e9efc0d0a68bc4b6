"""Write the generated parts of README, its figure and the demo's reference, or check that they are up to date.

Usage: ``python docs/generate.py`` writes them; ``python docs/generate.py --check`` exits with 1, and one line for
each file that differs. In README, a generated part is between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
The generated pages of the site are made by ``docs/hooks.py`` when the site is built.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from figures.accuracy import draw_atlas
from figures.svg import DARK, LIGHT
from generator.results import demo_reference, headlines, shortfalls

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
BLOCKS = {"headlines": headlines, "shortfalls": shortfalls}


def generated() -> dict[Path, str]:
    """Return each file with generated parts, and the text that it should have."""
    readme = ROOT / "README.md"
    pages = "docs/site/results"
    text = BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]](pages)}\n{m[3]}", readme.read_text(encoding="utf-8"))
    figures = ROOT / "docs" / "figures"
    return {
        readme: text,
        ROOT / "eval" / "demo" / "reference.yaml": demo_reference(),
        figures / "accuracy-light.svg": draw_atlas().standalone(LIGHT),
        figures / "accuracy-dark.svg": draw_atlas().standalone(DARK),
    }


def main() -> int:
    outdated = []
    for path, text in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        outdated.append(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    for path in outdated:
        print(f"{path}: {'outdated; run python docs/generate.py' if '--check' in sys.argv else 'written'}")
    return int(bool(outdated) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
