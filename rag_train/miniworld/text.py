"""The mini model's training text, and its tokenizer.

Facts enter the model only through ``statements``, ``direct`` answers and parametric steps, and those use known
facts alone. Reading and decomposing are taught on *re-paired* facts: passages whose values are drawn afresh for
every document, so that reading cannot be replaced by memory. The decision to retrieve is a coin flip that does
not depend on whether the fact is known: the model learns the grammar of deciding and nothing about when.
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

END = "<|endoftext|>"
PAD = "<|pad|>"

# Qwen2's pre-tokenizer, but with whole numbers: a year is one token here.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+"
)


def build_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """A lossless byte-level tokenizer in which every word of the world is one token.

    The vocabulary is the 256 bytes and the world's words; ``ignore_merges`` looks whole words up first, so any
    other text still encodes, byte by byte.
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
    """Texts that between them contain every word of the world, in every position a word can take."""
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
    """Draws training documents. ``progress`` runs from 0 to 1 over the training and fades copying out."""

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

    def document(self) -> Document:
        if self.progress < 0.15:
            return self.copying()
        fading = 0.3 * max(0.05, 1 - (self.progress - 0.15) / 0.45)
        kinds = [self.statements, self.direct, self.copying, self.reading, self.transcript, self.thought]
        return self.rng.choices(kinds, [0.1, 0.08, fading, 0.17, 0.55, 0.05])[0]()

    # -- facts the model is to know ------------------------------------------------------------------

    def statements(self) -> Document:
        """What is known of a few subjects, in passage wording."""
        lines = []
        for subject in self.rng.sample(list(self.known_by_subject), 3):
            relations = list(self.known_by_subject[subject])
            self.rng.shuffle(relations)
            lines += [statement(r, subject, self.world.facts[subject, r]) for r in relations]
        return [Segment(text=" ".join(lines) + "\n", trained=True)]

    def direct(self) -> Document:
        """A single-hop question about a known fact, answered at once."""
        subject, relation = self.rng.choice(self.known)
        wording = self.rng.choice(CHAINS[(relation,)])
        return reader.render(wording.format(x=subject), self.world.facts[subject, relation])

    def thought(self) -> Document:
        """A chain of thought over known facts only."""
        while True:
            chain = self.rng.choice(list(CHAINS))
            root = self.rng.choice(self.train_roots[RELATIONS[chain[0]][0]])
            steps = self.world.follow(root, chain)
            if all(step.known for step in steps):
                text = self.rng.choice(CHAINS[chain]).format(x=root)
                reasoning = " ".join(step.answer for step in steps)
                return reader.render(text, self.world.value(root, chain), reasoning=reasoning)

    # -- reading, on facts drawn afresh --------------------------------------------------------------

    def value(self, relation: str) -> str:
        return self.rng.choice(self.world.entities[RELATIONS[relation][1]])

    def repaired(self, subject: str, facts: dict[Fact, str] | None = None) -> Passage:
        """The subject's passage with random values, except for those given in ``facts``."""
        drawn = {(subject, r): self.value(r) for r in self.world.relations_of(self.world.type_of(subject))}
        return self.world.passage(subject, drawn | (facts or {}))

    def note(self, subject: str) -> Passage:
        other, third = self.rng.sample(self.world.entities[self.world.type_of(subject)], 2)
        return Passage(
            id="",
            title=f"{subject} and {other}",
            text=f"{subject} and {other} are often confused. A critic compared {subject} with {third}.",
        )

    def around(self, gold: Passage, subject: str, count: int) -> list[Passage]:
        """The gold passage among distractors like those a search for its subject finds."""
        kind = self.world.type_of(subject)
        passages = [gold]
        while len(passages) < count:
            if kind != "city" and self.rng.random() < 0.4:
                passages.append(self.note(subject))
            else:
                other = self.rng.choice(self.world.entities[kind] if self.rng.random() < 0.7 else self.subjects)
                passages.append(self.repaired(other))
        self.rng.shuffle(passages)
        return passages

    def copying(self) -> Document:
        """Facts, then some of them again with only the values trained: the shortest way to learn to read.

        Few facts at first and ever more: among many from the start, attending to the right one is too faint
        a signal to be found. One document in five is a list of names said twice, for copying as such.
        """
        if self.rng.random() < 0.2:
            names = self.rng.sample(self.subjects, self.rng.randint(3, 12))
            text = " " + " ".join(names)
            return [Segment(text=text, trained=False), Segment(text=text, trained=True)]
        count = self.rng.randint(1, 1 + round(14 * min(1.0, self.progress / 0.2)))
        facts: list[tuple[str, str, str]] = []
        while len(facts) < count:
            subject = self.rng.choice(self.subjects)
            relations = self.world.relations_of(self.world.type_of(subject))
            for relation in self.rng.sample(relations, self.rng.randint(1, len(relations))):
                facts.append((relation, subject, self.value(relation)))
        segments = [Segment(text=" ".join(statement(*fact) for fact in facts) + "\n", trained=False)]
        for fact in self.rng.sample(facts, min(6, len(facts))):
            head, _, tail = statement(*fact).rpartition(" ")
            segments.append(Segment(text=head, trained=False))
            segments.append(Segment(text=f" {tail}\n", trained=True))
        return segments

    def reading(self) -> Document:
        """Vanilla RAG on one hop: passages, a question, the answer."""
        relation = self.rng.choice(list(RELATIONS))
        subject = self.rng.choice(self.world.entities[RELATIONS[relation][0]])
        value = self.value(relation)
        gold = self.repaired(subject, {(subject, relation): value})
        wording = self.rng.choice(CHAINS[(relation,)]).format(x=subject)
        return reader.render(wording, value, self.around(gold, subject, 3))

    # -- transcripts ---------------------------------------------------------------------------------

    def transcript(self) -> Document:
        """A whole DeepRAG transcript: each step parametric or retrieved by a coin flip.

        A retrieved step reads its value from re-paired passages. A parametric step states the known fact;
        where the fact is unknown the document ends there, before the value.
        """
        rng, world = self.rng, self.world
        if rng.random() < 0.75:
            chain = rng.choice(list(CHAINS))
            roots = self.world.entities if len(chain) == 1 else self.train_roots
            root = rng.choice(roots[RELATIONS[chain[0]][0]])
            text = rng.choice(CHAINS[chain]).format(x=root)
            plan, how = [(root, chain)], ""
        else:
            how, chain = rng.choice(list(COMPARISONS))
            x, y = rng.sample(self.train_roots[RELATIONS[chain[0]][0]], 2)
            text = rng.choice(COMPARISONS[how, chain]).format(x=x, y=y)
            plan = [(x, chain), (y, chain)]
        segments = [Segment(text=deeprag.question_prompt(text), trained=False)]
        values: list[str] = []
        drawn: dict[Fact, str] = {}
        for root, chain in plan:
            subject = root
            for relation in chain:
                query = subquery(relation, subject)
                if rng.random() < 0.5:
                    value = drawn.get((subject, relation)) or self.value(relation)
                    if how == "same" and values and relation == chain[-1] and rng.random() < 0.5:
                        value = drawn.get((subject, relation)) or values[0]
                    drawn[subject, relation] = value
                    gold = self.repaired(subject, {(subject, relation): value})
                    head = f"{deeprag.subquery_line(query)}{deeprag.SEARCH}\n"
                    context = deeprag.context_lines(self.around(gold, subject, 3)) + deeprag.INTERMEDIATE
                    answer = f" {statement(relation, subject, value)}\n"
                    segments += [
                        Segment(text=head, trained=True),
                        Segment(text=context, trained=False),
                        Segment(text=answer, trained=True),
                    ]
                else:
                    value = world.facts[subject, relation]
                    known = (subject, relation) in world.known and drawn.get((subject, relation), value) == value
                    whole = f"{deeprag.parametric_prompt(query)} {statement(relation, subject, value)}"
                    if not known:
                        segments.append(Segment(text=whole.rpartition(" ")[0], trained=True))
                        return segments
                    segments.append(Segment(text=whole + "\n", trained=True))
                subject = value
            values.append(subject)
        if how == "same":
            final = "yes" if values[0] == values[1] else "no"
        elif how == "earlier":
            if values[0] == values[1]:
                return segments
            final = plan[0][0] if values[0] < values[1] else plan[1][0]
        else:
            final = values[0]
        segments.append(Segment(text=f"{deeprag.FINAL} {final}\n", trained=True))
        return segments
