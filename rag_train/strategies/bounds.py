"""Bounds on the cost of a question: the most calls and retrievals of each strategy.

They hold at default settings with three passages for a query; tests ask hostile models for more.
"""

from __future__ import annotations

from typing import NamedTuple


class Bound(NamedTuple):
    """The most calls and retrievals that a question can take."""

    calls: int
    retrievals: int


BOUNDS = {
    "deeprag": Bound(8, 6),
    "deeprag-parametric": Bound(13, 0),
    "deeprag-retrieve": Bound(13, 6),
    "dualrag": Bound(51, 200),
    "hanrag": Bound(32, 5),
    "hanrag-oracle": Bound(31, 5),
    "planrag": Bound(27, 13),
    "planrag-question": Bound(27, 1),
    "plan-selfrag": Bound(53, 13),
    "levelrag": Bound(1356, 594),
    "levelrag-sparse": Bound(69, 28),
    "levelrag-dense": Bound(7, 4),
    "levelrag-web": Bound(1, 1),
    "levelrag-hybrid": Bound(75, 33),
    "direct": Bound(1, 0),
    "cot": Bound(2, 0),
    "rag": Bound(1, 1),
    "cot-rag": Bound(2, 1),
    "cot-retrieve": Bound(2, 1),
    "oracle": Bound(1, 1),
    "two-hop-rag": Bound(1, 4),
    "ircot": Bound(6, 5),
    "iter-retgen": Bound(6, 3),
    "itrg": Bound(4, 3),
    "iterdrag": Bound(11, 6),
    "qd-rag": Bound(8, 1),
    "qd-rag-subq": Bound(8, 7),
    "react": Bound(13, 6),
    "fireact": Bound(13, 6),
    "flare": Bound(17, 8),
    "dragin": Bound(17, 8),
    "taare": Bound(2, 1),
    "uar": Bound(5, 1),
    "adaptive-retrieval": Bound(1, 1),
    "adaptive-rag": Bound(7, 5),
    "auto-rag": Bound(21, 10),
    "self-rag": Bound(4, 1),
    "rq-rag": Bound(25, 12),
    "metarag": Bound(30, 6),
    "genground": Bound(10, 5),
    "resp": Bound(11, 3),
    "rankrag": Bound(21, 1),
    "chatqa": Bound(1, 1),
    "search-r1": Bound(5, 4),
}
"""The stated bound of each strategy. The oracle searches once for each annotated hop."""
