"""Figures on training: the pipeline, and the layout of a batch as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from figures.svg import Canvas, Colour


@dataclass
class Node:
    """A stretch of tokens that several sequences share."""

    label: str
    tokens: int
    colour: Colour
    children: list[Node] = field(default_factory=list)


CHAIN = Node(
    "question",
    4,
    "ink",
    [
        Node(
            "Follow up 1",
            3,
            "ink",
            [
                Node("search (rejected)", 2, "retrieve"),
                Node(
                    "memory (chosen)",
                    2,
                    "memory",
                    [
                        Node(
                            "answer 1, Follow up 2",
                            5,
                            "ink",
                            [Node("search (chosen)", 2, "retrieve"), Node("memory (rejected)", 2, "memory")],
                        )
                    ],
                ),
            ],
        )
    ],
)
"""Two preference pairs of one trajectory: four sequences that share their beginnings."""


def preorder(node: Node, depth: int = 0) -> list[tuple[Node, int]]:
    """(node, first position in its sequence), parents before children."""
    return [(node, depth)] + [row for child in node.children for row in preorder(child, depth + node.tokens)]


def last_descendants() -> list[int]:
    """For each token of `CHAIN` in preorder, the index of its last descendant."""
    last: list[int] = []

    def visit(node: Node) -> int:
        start = len(last)
        last.extend([0] * node.tokens)
        for child in node.children:
            visit(child)
        end = len(last) - 1
        last[start : start + node.tokens] = [end] * node.tokens
        return end

    visit(CHAIN)
    return last


def tree_layout() -> Canvas:
    """Left: the trie of two preference pairs. Right: which tokens each token attends to."""
    canvas = Canvas(900, 520, "Two preference pairs laid out as one tree, and the attention mask of the row")
    canvas.heading(24, 30, "Four sequences, one tree")
    places: dict[str, tuple[float, float]] = {}
    rows = {
        "question": (24, 60),
        "Follow up 1": (54, 122),
        "search (rejected)": (100, 184),
        "memory (chosen)": (84, 246),
    }
    rows |= {"answer 1, Follow up 2": (114, 308), "search (chosen)": (160, 370), "memory (rejected)": (144, 432)}

    def place(node: Node, parent: Node | None) -> None:
        px, py = rows[node.label]
        places[node.label] = (px, py)
        if parent is not None:
            sx, sy = places[parent.label]
            canvas.arrow((sx + 12, sy + 40), (sx + 12, py + 20), (px, py + 20), colour="line", width=1.5)
        for i in range(node.tokens):
            canvas.rect(px + i * 20, py + 10, 17, 20, fill=node.colour, stroke=node.colour, radius=3, opacity=0.22)
        canvas.text(px + node.tokens * 20 + 8, py + 25, node.label, size=13.5, anchor="start", colour=node.colour)
        for child in node.children:
            place(child, node)

    place(CHAIN, None)
    total = sum(node.tokens for node, _ in preorder(CHAIN))
    canvas.note(24, 500, f"{total} tokens in place of {sequences_tokens()}: each prefix is computed once.")

    last, size, left, top = last_descendants(), 18.5, 490, 72
    canvas.heading(left, 30, "Attention of the row")
    canvas.text(
        left, 54, "row i reads column j if j ≤ i ≤ last[j]", size=13.5, anchor="start", mono=True, colour="muted"
    )
    owners = [node.colour for node, _ in preorder(CHAIN) for _ in range(node.tokens)]
    for i in range(len(last)):
        for j in range(len(last)):
            reads = j <= i <= last[j]
            canvas.rect(
                left + j * size, top + i * size, size - 2, size - 2,
                fill=owners[j] if reads else "panel", stroke=None, radius=2, opacity=0.75 if reads else 1,
            )  # fmt: skip
    canvas.note(left, top + len(last) * size + 20, "columns: tokens that are read")
    canvas.note(left, top + len(last) * size + 38, "grey: not read, because on another branch or later")
    return canvas


def sequences_tokens() -> int:
    """Tokens of all sequences from the root to a leaf of a pair, when each is computed alone."""
    return sum(
        depth + node.tokens for node, depth in preorder(CHAIN) if "chosen" in node.label or "rejected" in node.label
    )


def pipeline() -> Canvas:
    """From questions to a calibrated controller."""
    canvas = Canvas(900, 236, "From questions to a calibrated controller")
    boxes = [
        (12, "questions\nand corpus", "JSON Lines, TSV", "line"),
        (196, "tree search", "cheapest correct\ntrajectory", "retrieve"),
        (380, "Stage I", "imitation,\npassages masked", "good"),
        (564, "search again", "a preference\nat each node", "retrieve"),
        (748, "Stage II", "DPO on the\ndecisions", "good"),
    ]
    for x, label, note, colour in boxes:
        canvas.box(x, 52, 140, 92, label, note, stroke=colour)
    for x, *_ in boxes[:-1]:
        canvas.arrow((x + 140, 98), (x + 184, 98))
    commands = [(82, "rag-train index"), (266, "rag-train synth"), (450, "rag-train train")]
    for x, text in [*commands, (634, "rag-train synth"), (818, "rag-train train")]:
        canvas.text(x, 34, text, size=13.5, mono=True, colour="muted")
    canvas.arrow((818, 144), (818, 196), (662, 196), colour="muted")
    canvas.box(450, 174, 212, 44, "rag-train eval", mono=True, size=13.5)
    canvas.text(438, 193, "accuracy, retrievals, decisions against", size=12.5, colour="muted", anchor="end")
    canvas.text(438, 209, "the knowledge boundary, tokens by module", size=12.5, colour="muted", anchor="end")
    return canvas
