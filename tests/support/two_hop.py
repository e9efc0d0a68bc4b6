"""A two-hop question with its gold passages, and a kit whose model and retriever are fakes."""

from collections.abc import Callable, Sequence

from support.fakes import Found, Says

from rag_train.schema import GoldStep, Passage, Question
from rag_train.strategies.base import Kit

FILM = Passage(id="f", title="Moby Dick", text="Moby Dick is a 1956 film. It was directed by John Huston.")
MAN = Passage(id="m", title="John Huston", text="John Huston (born in Nevada) made films.")
QUESTION = Question(
    id="q",
    question="Where was the director of Moby Dick born?",
    answers=["Nevada", "NV"],
    hops=2,
    decomposition=[
        GoldStep(subquery="Who directed Moby Dick?", answer="John Huston", entity="Moby Dick", passage_ids=["f"]),
        GoldStep(subquery="Where was John Huston born?", answer="Nevada", entity="John Huston", passage_ids=["m"]),
    ],
)


def kit(text: str | Callable[[str], str], passages: Sequence[Passage] = (FILM, MAN), **more) -> Kit:
    """A kit whose model answers every prompt with ``text``, and whose retriever always returns ``passages``."""
    return Kit(Says(text), Found(passages), instructions=False, **more)
