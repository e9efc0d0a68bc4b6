"""The mini model's training text and tokenizer.

The model sees facts only in ``statements``, ``direct`` answers and parametric steps, which use only known facts.
Reading and decomposing are taught on *re-paired* facts: passages whose values are drawn anew for every document, so
that memory cannot replace reading. The decision to retrieve is random and independent of whether the fact is known,
so that the model learns the grammar of the decision, but not when to retrieve. For the same reason, a document that
stops before an unknown value has no end-of-text token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag_train.formats import deeprag, reader
from rag_train.miniworld.world import CHAINS, COMPARISONS, RELATIONS, SPLITS, Fact, World, statement, subquery
from rag_train.schema import Passage, Segment

Document = list[Segment]

COPYING = 0.1
"""Share of the training, at its beginning, that consists only of copying documents."""

END = "<|endoftext|>"
VERSION = 2
"""Version of the training text. Increase it whenever the documents change, so that older models are not reused."""

STOP = Segment(text=END, trained=True)
PAD = "<|pad|>"

# Qwen2's pre-tokenizer, except that a number, such as a year, is a single token.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+"
)


def build_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """Build a lossless byte-level tokenizer in which every word of the world is a single token.

    The vocabulary consists of the 256 bytes and the world's words. ``ignore_merges`` looks up whole words first;
    all other text is encoded byte by byte.
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words: dict[str, None] = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    for text in _sample_of_everything(world):
        words.update(dict.fromkeys(word for word, _ in splitter.pre_tokenize_str(text)))
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def _sample_of_everything(world: World) -> Iterator[str]:
    """Yield texts that together contain every word of the world in all positions that it can take."""
    names = [name for kind in world.entities.values() for name in kind]
    yield from (f" {name}" for name in names)
    yield from (" " + passage.text.partition(" ")[2] + "\n" for passage in world.corpus())
    for relation in RELATIONS:
        yield f" {subquery(relation, names[0])}\n{statement(relation, names[0], names[1])} The"
    for wordings in (*CHAINS.values(), *COMPARISONS.values()):
        yield from (" " + wording.format(x=names[0], y=names[1]) + "\n" for wording in wordings)
    yield " yes no\n"
    yield f"{deeprag.QUESTION}\n{deeprag.FOLLOW_UP}\n{deeprag.SEARCH}\n{deeprag.CONTEXT}\n"
    yield f"{deeprag.INTERMEDIATE}\n{deeprag.FINAL}\n{reader.THOUGHT}\n"


class TextSource:
    """A source of random training documents.

    ``progress`` goes from 0 to 1 during the training; the share of copying documents falls with it.
    """

    def __init__(self, world: World, seed: int):
        self.world = world
        self.rng = random.Random(f"text-{seed}")
        self.progress = 0.0
        self.subjects = [e for kind in ("film", "person", "city") for e in world.entities[kind]]
        self.known = sorted(world.known)
        self.train_roots = {
            kind: [e for e in world.entities[kind] if world.split.get(e) == SPLITS[0]]
            for kind in ("film", "person")
        } | {"city": world.entities["city"]}
        self.known_by_subject: dict[str, list[str]] = {}
        for subject, relation in self.known:
            self.known_by_subject.setdefault(subject, []).append(relation)
        # Famous entities are also mentioned more often.
        self.mentions = {
            kind: [name for name in names for _ in range(3 if self.is_famous(name, kind) else 1)]
            for kind, names in world.entities.items()
        }

    def is_famous(self, name: str, kind: str) -> bool:
        """Whether more than half of the facts about an entity are known."""
        return 2 * len(self.known_by_subject.get(name, [])) > len(self.world.relations_of(kind))

    def document(self) -> Document:
        """Draw a document of any kind."""
        if self.progress < COPYING:
            return self.copying()
        kinds = [
            self.statements,
            self.direct,
            self.copying,
            self.reading,
            self.transcript,
            self.recalled_history,
            self.thought,
        ]
        copying = max(0.03, 0.4 * (1 - (self.progress - COPYING) / 0.3))
        return self.rng.choices(kinds, [0.08, 0.2, copying, 0.1, 0.26, 0.3, 0.03])[0]()

    # -- facts that the model is to know -------------------------------------------------------------

    def statements(self) -> Document:
        """Draw the known facts about three subjects, worded as in passages."""
        lines = []
        for subject in self.rng.sample(list(self.known_by_subject), 3):
            relations = list(self.known_by_subject[subject])
            self.rng.shuffle(relations)
            lines += [statement(r, subject, self.world.facts[subject, r]) for r in relations]
        return [Segment(text=" ".join(lines) + "\n", trained=True), STOP]

    def direct(self) -> Document:
        """Draw a single-hop question about a known fact in the answer format, or a quiz of four subqueries.

        In a quiz, the value follows the subquery immediately, so that the model already recalls it at the point
        where a controller decides. This is common in models whose training text contains questions with answers.
        """
        if self.rng.random() < 0.35:
            subject, relation = self.rng.choice(self.known)
            wording = self.rng.choice(CHAINS[(relation,)]).format(x=subject)
            return [*reader.render(wording, self.world.facts[subject, relation]), STOP]
        document: Document = []
        for subject, relation in self.rng.sample(self.known, 4):
            document.append(Segment(text=deeprag.subquery_line(subquery(relation, subject)), trained=False))
            document.append(Segment(text=f" {self.world.facts[subject, relation]}\n", trained=True))
        return [*document, STOP]

    def thought(self) -> Document:
        """Draw a chain of thought over known facts."""
        while True:
            chain = self.rng.choice(list(CHAINS))
            root = self.rng.choice(self.train_roots[RELATIONS[chain[0]][0]])
            steps = self.world.follow(root, chain)
            if all(step.known for step in steps):
                text = self.rng.choice(CHAINS[chain]).format(x=root)
                reasoning = " ".join(step.answer for step in steps)
                return [*reader.render(text, self.world.value(root, chain), reasoning=reasoning), STOP]

    # -- reading, on facts drawn anew ----------------------------------------------------------------

    def value(self, relation: str) -> str:
        """Draw a random value of the relation's type."""
        return self.rng.choice(self.mentions[RELATIONS[relation][1]])

    def repaired(self, subject: str, facts: dict[Fact, str] | None = None) -> Passage:
        """Draw the subject's passage with random values, except for the values in ``facts``."""
        relations = self.world.relations_of(self.world.type_of(subject))
        share = self.world.config.mentioned_share
        drawn = {(subject, r): self.value(r) for r in relations if self.rng.random() < share}
        return self.world.passage(subject, drawn | (facts or {}))

    def note(self, subject: str) -> Passage:
        """Draw a distractor passage that names the subject."""
        other, third = self.rng.sample(self.world.entities[self.world.type_of(subject)], 2)
        return Passage(
            id="",
            title=f"{subject} and {other}",
            text=f"{subject} and {other} are often confused. A critic compared {subject} with {third}.",
        )

    def around(self, gold: Passage, subject: str, count: int) -> list[Passage]:
        """Return the gold passage among distractors like those that a search for its subject returns."""
        kind = self.world.type_of(subject)
        passages = [gold]
        while len(passages) < count:
            if kind != "city" and self.rng.random() < 0.4:
                passages.append(self.note(subject))
            else:
                other = self.rng.choice(self.mentions[kind] if self.rng.random() < 0.7 else self.subjects)
                passages.append(self.repaired(other))
        self.rng.shuffle(passages)
        return passages

    def copying(self) -> Document:
        """Draw facts that are stated twice, the second time with trained values: the fastest way to learn to read.

        Half of the documents have one relation of several subjects, so that the model has to match the subject. The
        number of facts grows during the training, because the signal of a single fact among many is too weak at
        first.
        """
        rng, facts = self.rng, []
        most = min(1.0, self.progress / COPYING)
        if rng.random() < 0.5:
            relation = rng.choice(list(RELATIONS))
            pool = self.world.entities[RELATIONS[relation][0]]
            subjects = rng.sample(pool, rng.randint(2, 2 + round(6 * most)))
            facts = [(relation, subject, self.value(relation)) for subject in subjects]
        else:
            for subject in rng.sample(self.subjects, rng.randint(1, 1 + round(3 * most))):
                relations = self.world.relations_of(self.world.type_of(subject))
                facts += [(relation, subject, self.value(relation)) for relation in relations]
            rng.shuffle(facts)
        document = [Segment(text=" ".join(statement(*fact) for fact in facts) + "\n", trained=False)]
        for fact in rng.sample(facts, len(facts)):
            head, _, tail = statement(*fact).rpartition(" ")
            document.append(Segment(text=head, trained=False))
            document.append(Segment(text=f" {tail}\n", trained=True))
        return document

    def reading(self) -> Document:
        """Draw a single-hop example of vanilla RAG: passages, a question, and the answer."""
        relation = self.rng.choice(list(RELATIONS))
        subject = self.rng.choice(self.world.entities[RELATIONS[relation][0]])
        value = self.value(relation)
        gold = self.repaired(subject, {(subject, relation): value})
        wording = self.rng.choice(CHAINS[(relation,)]).format(x=subject)
        return [*reader.render(wording, value, self.around(gold, subject, 3)), STOP]

    # -- transcripts ---------------------------------------------------------------------------------

    def plan(self, compare: float = 0.3) -> tuple[str, list[tuple[str, tuple[str, ...]]], str]:
        """Draw a question, the chains to follow, and how their ends are compared ("" for a single chain).

        Roots belong to the training split, except for the second root of a comparison, so that any name can be the
        answer.
        """
        rng = self.rng
        if rng.random() >= compare:
            chain = rng.choice(list(CHAINS))
            roots = self.world.entities if len(chain) == 1 else self.train_roots
            root = rng.choice(roots[RELATIONS[chain[0]][0]])
            return rng.choice(CHAINS[chain]).format(x=root), [(root, chain)], ""
        how, chain = rng.choice(list(COMPARISONS))
        kind = RELATIONS[chain[0]][0]
        x, y = rng.choice(self.train_roots[kind]), rng.choice(self.world.entities[kind])
        if rng.random() < 0.5:
            x, y = y, x
        return rng.choice(COMPARISONS[how, chain]).format(x=x, y=y), [(x, chain), (y, chain)], how

    def draw(self, fact: Fact, drawn: dict[Fact, str], how: str, ends: list[str], last: bool) -> str:
        """Return the value of ``fact`` in this document, drawn at its first use.

        In half of the questions about "same", the last value is the end of the first chain.
        """
        if fact not in drawn:
            same = how == "same" and ends and last and self.rng.random() < 0.5
            drawn[fact] = ends[0] if same else self.value(fact[1])
        return drawn[fact]

    def conclusion(self, plan: list[tuple[str, tuple[str, ...]]], how: str, ends: list[str]) -> Document:
        """Return the final answer that follows from the ends of the chains; no segments for an undecidable one."""
        if how == "same":
            final = "yes" if ends[0] == ends[1] else "no"
        elif how == "earlier":
            if ends[0] == ends[1]:
                return []
            final = plan[0][0] if ends[0] < ends[1] else plan[1][0]
        else:
            final = ends[0]
        return [Segment(text=f"{deeprag.FINAL} {final}\n", trained=True), STOP]

    def recalled_history(self) -> Document:
        """Draw a transcript with given random answers, of which the subqueries and the final answer are trained."""
        text, plan, how = self.plan(compare=0.7)
        document = [Segment(text=deeprag.question_prompt(text), trained=False)]
        ends: list[str] = []
        drawn: dict[Fact, str] = {}
        for subject, chain in plan:
            for relation in chain:
                value = self.draw((subject, relation), drawn, how, ends, relation == chain[-1])
                document.append(Segment(text=deeprag.subquery_line(subquery(relation, subject)), trained=True))
                answer = f"{deeprag.INTERMEDIATE} {statement(relation, subject, value)}\n"
                document.append(Segment(text=answer, trained=False))
                subject = value
            ends.append(subject)
        return document + self.conclusion(plan, how, ends)

    def transcript(self) -> Document:
        """Draw a DeepRAG transcript in which each step is parametric or retrieved at random.

        A retrieved step reads its value from re-paired passages. A parametric step states a known fact; if the fact
        is unknown, the document stops before the value, without an end-of-text token.
        """
        world = self.world
        text, plan, how = self.plan()
        document = [Segment(text=deeprag.question_prompt(text), trained=False)]
        ends: list[str] = []
        drawn: dict[Fact, str] = {}
        for subject, chain in plan:
            for relation in chain:
                fact, query = (subject, relation), subquery(relation, subject)
                if self.rng.random() < 0.5:
                    value = self.draw(fact, drawn, how, ends, relation == chain[-1])
                    passages = self.around(self.repaired(subject, {fact: value}), subject, 3)
                    document += [
                        Segment(text=f"{deeprag.subquery_line(query)}{deeprag.SEARCH}\n", trained=True),
                        Segment(text=deeprag.context_lines(passages) + deeprag.INTERMEDIATE, trained=False),
                        Segment(text=f" {statement(relation, subject, value)}\n", trained=True),
                    ]
                else:
                    value = world.facts[fact]
                    step = f"{deeprag.parametric_prompt(query)} {statement(relation, subject, value)}"
                    if fact not in world.known or drawn.get(fact, value) != value:
                        return [*document, Segment(text=step.rpartition(" ")[0], trained=True)]
                    document.append(Segment(text=step + "\n", trained=True))
                subject = value
            ends.append(subject)
        return document + self.conclusion(plan, how, ends)
