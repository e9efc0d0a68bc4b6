"""The mini world: kinds of entities, relations, and where a fact can be found."""

from __future__ import annotations

from figures.svg import Canvas


def draw() -> Canvas:
    canvas = Canvas(900, 380, "The mini world: entities, relations, and the known and unknown facts")
    canvas.heading(24, 30, "Entities and relations")
    for x, y, label, note in (
        (24, 60, "film", "600"),
        (210, 60, "person", "600"),
        (396, 60, "city", "60"),
        (396, 176, "country", "40"),
        (24, 176, "year", "1950 to 1979"),
    ):
        canvas.box(x, y, 100, 52, label, note)
    canvas.arrow((124, 78), (210, 78), label="director", at=(167, 70))
    canvas.arrow((124, 98), (210, 98), label="star", at=(167, 116))
    canvas.arrow((310, 86), (396, 86), label="birthplace", at=(353, 78))
    canvas.arrow((446, 112), (446, 176), label="country", at=(454, 148), anchor="start")
    canvas.arrow((74, 112), (74, 176), label="release year", at=(82, 148), anchor="start")
    canvas.arrow((240, 112), (240, 202), (124, 202), label="birth year", at=(182, 220))
    canvas.arrow((272, 112), (272, 140), (294, 140), (294, 112), label="spouse", at=(283, 156))
    canvas.heading(24, 278, "A question of three hops")
    canvas.text(24, 306, "In which country was the director of Gruda born?", size=14, anchor="start", italic=True)
    for x, label, colour in (
        (24, "director", "memory"),
        (170, "birthplace", "retrieve"),
        (316, "country", "memory"),
    ):
        canvas.box(x, 322, 116, 40, label, stroke=colour)
    canvas.arrow((140, 342), (170, 342))
    canvas.arrow((286, 342), (316, 342))

    canvas.heading(540, 30, "Each fact is in one of four cells")
    canvas.text(684, 62, "passages\nmention it (3 of 4)", size=12.5, colour="muted")
    canvas.text(824, 62, "passages\ndo not (1 of 4)", size=12.5, colour="muted")
    canvas.text(540, 130, "known", size=13.5, colour="memory", anchor="start", bold=True)
    canvas.text(540, 230, "unknown", size=13.5, colour="retrieve", anchor="start", bold=True)
    for x, y, label, note, colour in (
        (618, 92, "use memory", "retrieval is wasted", "memory"),
        (758, 92, "memory only", "retrieval misleads", "memory"),
        (618, 192, "retrieve", "memory would guess", "retrieve"),
        (758, 192, "out of reach", "neither can tell", "line"),
    ):
        canvas.box(x, y, 132, 84, label, note, stroke=colour, size=13)
    canvas.note(540, 312, "Known: in the model's training text, half of all facts.")
    canvas.note(540, 332, "A controller cannot see the cell. It learns from")
    canvas.note(540, 352, "search which decision leads to the right answer.")
    return canvas
