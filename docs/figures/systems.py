"""Figures of the five systems."""

from __future__ import annotations

from figures.svg import Canvas


def deeprag() -> Canvas:
    """The binary tree of Algorithm 1, and what the two stages learn from its best path."""
    canvas = Canvas(900, 430, "DeepRAG: the search tree, the cheapest correct path, and the two training stages")
    canvas.heading(24, 28, "Search: explore fewest retrievals first")
    canvas.box(205, 44, 190, 40, "question", stroke="ink")
    canvas.box(205, 108, 190, 36, "Follow up 1", fill=None)
    canvas.arrow((300, 84), (300, 108))
    canvas.box(60, 178, 180, 52, "memory: answer 1", "0 retrievals", stroke="memory")
    canvas.box(360, 178, 180, 52, "search: answer 1′", "1 retrieval", stroke="retrieve")
    canvas.arrow((260, 144), (150, 178), colour="good", width=3)
    canvas.arrow((340, 144), (450, 178), colour="retrieve")
    canvas.box(55, 256, 190, 36, "Follow up 2", fill=None)
    canvas.arrow((150, 230), (150, 256), colour="good", width=3)
    canvas.box(14, 326, 140, 52, "memory", "wrong answer ✗", stroke="memory")
    canvas.box(176, 326, 150, 52, "search", "right answer ✓", stroke="good")
    canvas.arrow((120, 292), (84, 326), colour="memory")
    canvas.arrow((190, 292), (251, 326), colour="good", width=3)
    canvas.box(
        360,
        256,
        180,
        52,
        "not explored",
        "a right answer with\n1 retrieval is known",
        dashed=True,
        fill=None,
        size=13,
    )
    canvas.arrow((450, 230), (450, 256), dashed=True)
    canvas.text(24, 412, "Green: the trajectory that is kept.", size=13, colour="good", anchor="start")
    canvas.heading(590, 28, "Stage I: imitate the path")
    lines = [
        ("Follow up: …", "ink"), ("Intermediate answer: …", "ink"), ("Follow up: …", "ink"),
        ("Let's search the question …", "ink"), ("Context: …   (masked)", "line"),
        ("Intermediate answer: …", "ink"), ("So the final answer is: …", "ink"),
    ]  # fmt: skip
    canvas.rect(590, 42, 292, 158)
    for i, (line, colour) in enumerate(lines):
        canvas.text(604, 65 + 20.5 * i, line, size=13, anchor="start", mono=True, colour=colour)
    canvas.heading(590, 236, "Stage II: prefer the right decision")
    for y, node, good, bad in ((250, "node 1", "memory", "search"), (318, "node 2", "search", "memory")):
        canvas.rect(590, y, 292, 58)
        canvas.text(604, y + 34, node, size=13, anchor="start", bold=True)
        snippets = {"memory": "Intermediate answer:", "search": "Let's search …"}
        canvas.text(660, y + 24, f"✓ {snippets[good]}", size=12.5, anchor="start", mono=True, colour="good")
        canvas.text(660, y + 46, f"✗ {snippets[bad]}", size=12.5, anchor="start", mono=True, colour="muted")
    canvas.note(590, 398, "The loss is DPO on these snippets alone.")
    return canvas


def dualrag() -> Canvas:
    """The loop of reasoning-augmented querying and progressive knowledge aggregation."""
    canvas = Canvas(900, 400, "DualRAG: the loop of querying and knowledge aggregation")
    canvas.rect(170, 44, 440, 336, fill=None, dashed=True, radius=14)
    canvas.heading(186, 30, "Reasoning-augmented querying (RaQ)", colour="retrieve", size=14)
    canvas.rect(630, 44, 256, 336, fill=None, dashed=True, radius=14)
    canvas.heading(646, 22, "Progressive knowledge\naggregation (pKA)", colour="good", size=14)
    canvas.box(12, 78, 128, 64, "question")
    canvas.arrow((140, 110), (196, 110))
    canvas.box(196, 70, 170, 80, "Reasoner", "next thought;\nis knowledge missing?", stroke="retrieve")
    canvas.box(12, 300, 128, 60, "answer", stroke="ink")
    canvas.arrow((240, 150), (240, 330), (140, 330), label="nothing missing", at=(248, 316), anchor="start")
    canvas.arrow((366, 110), (424, 110), label="missing", at=(395, 100))
    canvas.box(424, 70, 170, 80, "Entity Identifier", "key entities, and\nqueries for each", stroke="retrieve")
    canvas.arrow((509, 150), (509, 214), label="for each entity", at=(500, 186), anchor="end")
    canvas.box(424, 214, 170, 80, "search, rerank", "passages grouped\nby entity")
    canvas.arrow((594, 254), (654, 254))
    canvas.box(
        654, 214, 212, 80, "Knowledge Summarizer", "what the passages say\nabout what is missing", stroke="good"
    )
    canvas.arrow((760, 214), (760, 186), colour="good")
    canvas.rect(654, 64, 212, 122, stroke="good")
    canvas.text(668, 86, "knowledge outline", size=13.5, anchor="start", bold=True)
    canvas.text(668, 108, "entity A\n  summary, summary\nentity B\n  summary", size=12.5, anchor="start", mono=True)
    canvas.arrow((760, 64), (760, 55), (281, 55), (281, 70), colour="good")
    canvas.note(400, 352, "At most five rounds.")
    return canvas


def hanrag() -> Canvas:
    """The Revelator's four routes."""
    canvas = Canvas(900, 470, "HANRAG: the Revelator routes a question to one of four chains")
    canvas.box(12, 196, 116, 60, "question")
    canvas.box(164, 186, 130, 80, "router", "Revelator", stroke="retrieve")
    canvas.arrow((128, 226), (164, 226))
    rows = {"straightforward": 62, "single-step": 150, "compound": 250, "complex": 370}
    for name, y in rows.items():
        canvas.arrow((294, 226), (320, 226), (320, y), (344, y))
        canvas.heading(346, y - 34 if name != "complex" else y - 48, name, colour="muted", size=14)
    canvas.box(344, 40, 150, 44, "generator", "from memory", stroke="memory", size=13)
    canvas.box(344, 128, 150, 44, "ANRAG", "one retrieval", stroke="good", size=13)
    canvas.box(344, 228, 116, 44, "decompose", "Revelator", stroke="retrieve", size=13)
    for i, y in enumerate((216, 240, 264)):
        canvas.arrow((460, 250), (488, y + 10))
        canvas.box(488, y, 128, 20, f"ANRAG, part {i + 1}", stroke="good", size=12)
    canvas.text(552, 306, "at the same time", size=12.5, colour="muted")
    for y in (226, 250, 274):
        canvas.arrow((616, y), (652, 250), head=y == 250)
    canvas.box(652, 228, 110, 44, "combine", size=13)
    canvas.box(344, 340, 116, 60, "refine", "next seed question\n(Revelator)", stroke="retrieve", size=12.5)
    canvas.arrow((460, 370), (488, 370))
    canvas.box(488, 348, 96, 44, "ANRAG", stroke="good", size=13)
    canvas.arrow((584, 370), (612, 370))
    canvas.box(612, 340, 116, 60, "enough?", "ending discriminator\n(Revelator)", stroke="retrieve", size=12.5)
    canvas.arrow(
        (670, 400), (670, 428), (402, 428), (402, 400), label="no: next round, at most five", at=(536, 446)
    )
    canvas.arrow((728, 370), (768, 370), label="yes", at=(748, 361))
    canvas.box(768, 348, 110, 44, "combine", size=13)
    canvas.rect(560, 24, 326, 150, fill=None, dashed=True)
    canvas.text(574, 46, "ANRAG: noise-resistant retrieval", size=13.5, anchor="start", bold=True, colour="good")
    canvas.box(574, 66, 86, 56, "retrieve", "passages", size=12.5)
    canvas.arrow((660, 94), (678, 94))
    canvas.box(678, 66, 104, 56, "relevant?", "Revelator", stroke="retrieve", size=12.5)
    canvas.arrow((782, 94), (800, 94))
    canvas.box(800, 66, 76, 56, "answer", "generator", size=12.5)
    canvas.note(574, 154, "Passages judged irrelevant are dropped.")
    return canvas


def planrag() -> Canvas:
    """A plan as a graph, its depths, and the work at one node."""
    canvas = Canvas(900, 420, "PlanRAG: a plan as a directed acyclic graph, answered depth by depth")
    canvas.heading(24, 28, "The plan is a data structure outside the model's context")
    for i, y in enumerate((48, 164, 280)):
        canvas.rect(14, y, 560, 96, fill=None, dashed=True)
        canvas.note(28, y + 20, f"depth {i + 1}")
    canvas.box(96, 74, 210, 58, "Q1.1", "Where was the last\ncricket final held?", stroke="retrieve", size=13)
    canvas.box(340, 74, 210, 58, "Q1.2", "Where was the one\nbefore held?", stroke="retrieve", size=13)
    canvas.box(96, 190, 210, 58, "Q2.1", "What are the\ncoordinates of <A1.1>?", stroke="retrieve", size=13)
    canvas.box(340, 190, 210, 58, "Q2.2", "What are the\ncoordinates of <A1.2>?", stroke="retrieve", size=13)
    canvas.box(
        200, 306, 246, 58, "Q3.1", "What is the distance between\n<A2.1> and <A2.2>?", stroke="good", size=13
    )
    canvas.arrow((201, 132), (201, 190))
    canvas.arrow((445, 132), (445, 190))
    canvas.arrow((201, 248), (270, 306))
    canvas.arrow((445, 248), (376, 306))
    canvas.note(24, 404, "Nodes of one depth are answered at the same time. The example is the paper's (Figure 3).")
    canvas.heading(620, 28, "At each node")
    steps = [
        ("fill the tags", "<A1.1> becomes the\nparent's answer"),
        ("retrieve", "for this subquery alone"),
        ("generate", "from the passages and the\nparents' answers only"),
    ]
    for i, (label, note) in enumerate(steps):
        canvas.box(640, 56 + 108 * i, 220, 76, label, note)
        if i < 2:
            canvas.arrow((750, 132 + 108 * i), (750, 164 + 108 * i))
    return canvas


def levelrag() -> Canvas:
    """The high-level searcher over three low-level searchers."""
    canvas = Canvas(900, 440, "LevelRAG: a high-level searcher over sparse, dense and web searchers")
    canvas.rect(150, 40, 640, 132, fill=None, dashed=True, radius=14)
    canvas.heading(164, 28, "High-level searcher", colour="good", size=14)
    canvas.box(12, 76, 108, 60, "question")
    canvas.arrow((120, 106), (168, 106))
    canvas.box(168, 70, 136, 72, "decompose", "atomic queries", stroke="good")
    canvas.box(368, 70, 136, 72, "summarize", "answer each\natomic query", stroke="good")
    canvas.box(568, 70, 100, 72, "verify", "enough?", stroke="good")
    canvas.box(690, 70, 96, 72, "supplement", "further\nqueries", stroke="good", size=12.5)
    canvas.arrow((504, 106), (568, 106))
    canvas.arrow((668, 106), (690, 106), label="no", at=(679, 98))
    canvas.arrow((618, 70), (618, 22), (842, 22), (842, 76), label="yes", at=(636, 60))
    canvas.box(800, 76, 86, 60, "answer", stroke="ink")
    canvas.arrow((236, 142), (236, 222))
    canvas.arrow((739, 142), (739, 200), (262, 200), (262, 222), dashed=True)
    canvas.arrow((436, 222), (436, 142), label="passages", at=(446, 190), anchor="start")
    canvas.rect(150, 222, 736, 206, fill=None, dashed=True, radius=14)
    canvas.heading(164, 244, "Low-level searchers, for each atomic query", colour="retrieve", size=14)
    canvas.box(166, 258, 254, 156, "", stroke="retrieve")
    canvas.text(293, 282, "sparse (Lucene syntax)", size=14, bold=True)
    canvas.text(
        180,
        306,
        'keywords, then breadth-first:\nextend     "new keyword"\nfilter     -keyword\nemphasize  keyword^2',
        size=12.5,
        anchor="start",
        mono=True,
    )
    canvas.text(293, 398, "until the passages suffice", size=12.5, colour="muted")
    canvas.box(440, 258, 220, 156, "", stroke="retrieve")
    canvas.text(550, 282, "dense", size=14, bold=True)
    canvas.text(
        550,
        308,
        "the query itself, then with\na pseudo-document that the\nmodel writes from what\nwas retrieved",
        size=12.5,
    )
    canvas.text(550, 398, "until the passages suffice", size=12.5, colour="muted")
    canvas.box(680, 258, 190, 156, "", stroke="retrieve")
    canvas.text(775, 282, "web", size=14, bold=True)
    canvas.text(775, 308, "the query as it is;\nthe engine's abstracts\nare the passages", size=12.5)
    return canvas
