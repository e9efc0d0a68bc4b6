"""The mini model's training text and tokenizer.

The text teaches facts, what questions mean, reading and reasoning, in plain sentences: no method's transcript, no
marker of a prompt, and no decision to retrieve. The model sees facts only in ``statements``, ``quiz`` and
``thought``, which use only facts that it is to know, with outdated values for facts that changed later. Reading and
reasoning are taught on *re-paired* facts, whose values are drawn anew for every document, so that memory cannot
replace reading.

Questions and answers stand in many layouts, with random words around them (`TextSource.framed`). A model that saw a
single layout recalls its facts in that layout only, and forgets them when it is fine-tuned on another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag_train.llm.control import MARK
from rag_train.schema import Passage, Segment
from rag_train.worlds.mini.world import CHAINS, COMPARISONS, RELATIONS, SPLITS, Fact, World, statement, subquery

Document = list[Segment]

COPYING = 0.1
"""Share of the training, at its beginning, that consists only of copying documents."""

END = "<|endoftext|>"
VERSION = 7
"""Version of the training text. Increase it whenever the documents change, so that older models are not reused."""

STOP = Segment(text=MARK + END, trained=True)
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
    for name in names:
        yield f" {name}\n{name}: {name}\n"
    yield from (" " + passage.text.partition(" ")[2] + "\n" for passage in world.corpus())
    for relation in RELATIONS:
        query = subquery(relation, names[0])
        yield f" {query}\n{query}\n{statement(relation, names[0], names[1])} The"
    for wordings in (*CHAINS.values(), *COMPARISONS.values()):
        for wording in wordings:
            yield " " + wording.format(x=names[0], y=names[1]) + "\n" + wording.format(x=names[0], y=names[1])
    yield "".join(f" {word}\n{word}: {word}, {word}.\n" for word in FILLERS)
    yield f" yes no\n{ASKED} {names[0]} {ASKS}\n{THINKING} {names[0]} {CONCLUSION} and the"


FILLERS = [f"{a}{b}{c}" for a in "bdkm" for b in ("ari", "elo", "ino", "usa") for c in ("l", "n", "r", "t")]
"""Words without a meaning, of which the layouts of questions and answers are made."""
ASKED, ASKS = "The question:", "This asks for the"
"""Words around a question that is explained."""
THINKING, CONCLUSION = "Step by step:", "So the answer is"
"""Words before a question that is answered by thinking aloud, and before its answer."""


class TextSource:
    """A source of random training documents.

    ``progress`` goes from 0 to 1 during the training; the share of copying documents falls with it.
    """

    def __init__(self, world: World, seed: int):
        self.world = world
        self.rng = random.Random(f"text-{seed}")
        self.progress = 0.0
        self.subjects = [e for kind in ("film", "person", "city") for e in world.entities[kind]]
        self.learned = sorted(world.known | world.outdated.keys())
        self.train_roots = {
            kind: [e for e in world.entities[kind] if world.split.get(e) in SPLITS[:2]]
            for kind in ("film", "person")
        } | {"city": world.entities["city"]}
        self.learned_by_subject: dict[str, list[str]] = {}
        for subject, relation in self.learned:
            self.learned_by_subject.setdefault(subject, []).append(relation)
        # Famous entities are mentioned more often.
        self.mentions = {
            kind: [name for name in names for _ in range(3 if name in world.famous else 1)]
            for kind, names in world.entities.items()
        }
        self.namesakes: dict[tuple[str, str], list[str]] = {}
        for kind, names in world.entities.items():
            for name in names:
                self.namesakes.setdefault((kind, name.split()[0]), []).append(name)

    def document(self) -> Document:
        """Draw a document of any kind."""
        if self.progress < COPYING:
            return self.copying()
        copying = max(0.08, 0.4 * (1 - (self.progress - COPYING) / 0.3))
        kinds = {
            self.statements: 0.06,
            self.quiz: 0.3,
            self.copying: copying,
            self.reading: 0.3,
            self.meaning: 0.08,
            self.inference: 0.14,
            self.thought: 0.07,
        }
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    # -- facts that the model is to know -------------------------------------------------------------

    def statements(self) -> Document:
        """Draw what the model is to know about three subjects, worded as in passages."""
        lines = []
        for subject in self.rng.sample(list(self.learned_by_subject), 3):
            relations = list(self.learned_by_subject[subject])
            self.rng.shuffle(relations)
            lines += [statement(r, subject, self.learned_value((subject, r))) for r in relations]
        return [Segment(text=" ".join(lines) + "\n", trained=True), STOP]

    def quiz(self) -> Document:
        """Draw four questions about facts that the model is to know, each with its answer."""
        document: Document = []
        for fact in self.rng.sample(self.learned, 4):
            document += self.framed(self.question(fact), self.learned_value(fact))
        return [*document, STOP]

    def thought(self) -> Document:
        """Draw a question of several hops that the model can answer from memory, at once or thinking aloud."""
        while True:
            chain = self.rng.choice([chain for chain in CHAINS if len(chain) > 1])
            subject = root = self.rng.choice(self.train_roots[RELATIONS[chain[0]][0]])
            steps = []
            for relation in chain:
                value = self.world.recalled((subject, relation))
                if value is None:
                    break
                steps.append(statement(relation, subject, value))
                subject = value
            if len(steps) < len(chain):
                continue
            question = self.rng.choice(CHAINS[chain]).format(x=root)
            if self.rng.random() < 0.5:
                return [*self.framed(question, subject), STOP]
            reasoning = f" {' '.join(steps)} {CONCLUSION} {subject}.\n"
            return [
                Segment(text=f"{THINKING} {question}", trained=False),
                Segment(text=reasoning, trained=True),
                STOP,
            ]

    def learned_value(self, fact: Fact) -> str:
        """Return the value that the model is to know."""
        value = self.world.recalled(fact)
        assert value is not None
        return value

    def question(self, fact: Fact) -> str:
        """Draw a wording of the question about a fact."""
        subject, relation = fact
        wordings = [wording.format(x=subject) for wording in CHAINS[(relation,)]]
        return self.rng.choice([*wordings, subquery(relation, subject)])

    def framed(self, question: str, answer: str, lines: str = "") -> Document:
        """Draw a layout of a question and its answer: random words before, between and after them.

        ``lines`` of text to read come before or after the question.
        """
        if self.rng.random() < 0.5:
            text = f"{lines}{self.words()}{question}{self.cue()}"
        else:
            between = f"{self.cue()}\n{lines}{self.words()}".rstrip(" ") if lines else self.cue()
            text = f"{self.words()}{question}{between}"
        return [Segment(text=text, trained=False), Segment(text=f" {answer}\n", trained=True)]

    def words(self) -> str:
        """Draw words before a question, or none."""
        if self.rng.random() < 0.5:
            return ""
        return " ".join(self.rng.choices(FILLERS, k=self.rng.randint(1, 3))) + self.rng.choice((": ", ", ", " "))

    def cue(self) -> str:
        """Draw what stands between a question and its answer, often nothing."""
        if self.rng.random() < 0.4:
            return ""
        start, end = self.rng.choice((" ", "\n")), self.rng.choice((":", ".", ",", ""))
        return start + " ".join(self.rng.choices(FILLERS, k=self.rng.randint(1, 5))) + end

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
        """Return the gold passage among distractors like those that a search for its subject returns.

        These are notes about the subject, passages that state it as a value, passages about its namesakes, and
        some about anything.
        """
        kind = self.world.type_of(subject)
        namesakes = [name for name in self.namesakes[kind, subject.split()[0]] if name != subject]
        stating = [relation for relation, (_, value, _) in RELATIONS.items() if value == kind]
        passages = [gold]
        while len(passages) < count:
            draw = self.rng.random()
            if kind != "city" and draw < 0.35:
                passages.append(self.note(subject))
            elif stating and draw < 0.7:
                relation = self.rng.choice(stating)
                other = self.rng.choice(self.world.entities[RELATIONS[relation][0]])
                if other != subject:
                    passages.append(self.repaired(other, {(other, relation): subject}))
            elif namesakes and draw < 0.9:
                passages.append(self.repaired(self.rng.choice(namesakes)))
            else:
                passages.append(self.repaired(self.rng.choice(self.subjects)))
        self.rng.shuffle(passages)
        return passages

    def copying(self) -> Document:
        """Draw facts that are stated twice, the second time with trained values: the fastest way to learn to read.

        Trained are also the second words of names, which follow from the first: a controller has to copy any name.
        Half of the documents have one relation of several subjects, so that the model has to match the subject. The
        number of facts grows during the training, because the signal of a single fact among many is too weak at
        first.
        """
        rng, facts = self.rng, []
        most = min(1.0, self.progress / COPYING)
        if rng.random() < 0.5:
            relation = rng.choice(list(RELATIONS))
            pool = self.world.entities[RELATIONS[relation][0]]
            subjects = rng.sample(pool, rng.randint(2, 2 + round(5 * most)))
            facts = [(relation, subject, self.value(relation)) for subject in subjects]
        else:
            for subject in rng.sample(self.subjects, rng.randint(1, 1 + round(2 * most))):
                relations = self.world.relations_of(self.world.type_of(subject))
                facts += [(relation, subject, self.value(relation)) for relation in relations]
            rng.shuffle(facts)
        document = [Segment(text=" ".join(statement(*fact) for fact in facts) + "\n", trained=False)]
        for relation, subject, value in rng.sample(facts, len(facts)):
            before = statement(relation, subject, value).removesuffix(f"{subject} is {value}.")
            first, _, second = subject.rpartition(" ")
            document += [
                Segment(text=(before + first).rstrip(" "), trained=False),
                Segment(text=f" {second}", trained=bool(first)),
                Segment(text=" is", trained=False),
                Segment(text=f" {value}.\n", trained=True),
            ]
        return document

    def reading(self) -> Document:
        """Draw three passages, and a question about a subject whose passage is among them."""
        relation = self.rng.choice(list(RELATIONS))
        subject = self.rng.choice(self.world.entities[RELATIONS[relation][0]])
        fact, value = (subject, relation), self.value(relation)
        passages = self.around(self.repaired(subject, {fact: value}), subject, 3)
        lines = "".join(f"{passage.title}: {passage.text}\n" for passage in passages)
        return [*self.framed(self.question(fact), value, lines), STOP]

    # -- questions of several hops -------------------------------------------------------------------

    def plan(self) -> tuple[str, list[tuple[str, tuple[str, ...]]], str]:
        """Draw a question, the chains to follow, and how their ends are compared ("" for a single chain).

        Roots belong to the training split, except for the second root of a comparison, so that any name can be the
        answer.
        """
        rng = self.rng
        if rng.random() < 0.7:
            hops = rng.choice((1, 2, 2, 3, 4))
            chain = rng.choice([chain for chain in CHAINS if len(chain) == hops])
            roots = self.world.entities if hops == 1 else self.train_roots
            root = rng.choice(roots[RELATIONS[chain[0]][0]])
            return rng.choice(CHAINS[chain]).format(x=root), [(root, chain)], ""
        how, chain = rng.choice(list(COMPARISONS))
        kind = RELATIONS[chain[0]][0]
        x, y = rng.choice(self.train_roots[kind]), rng.choice(self.world.entities[kind])
        if rng.random() < 0.5:
            x, y = y, x
        return rng.choice(COMPARISONS[how, chain]).format(x=x, y=y), [(x, chain), (y, chain)], how

    def meaning(self) -> Document:
        """Draw questions, each followed by what it asks for, such as "the birthplace of the director of X"."""
        document: Document = []
        for _ in range(3):
            question, plan, _ = self.plan()
            document += [
                Segment(text=f"{ASKED} {question} {ASKS}", trained=False),
                Segment(text=f" {asked_for(plan)}.\n", trained=True),
            ]
        return [*document, STOP]

    def inference(self) -> Document:
        """Draw a question after the facts that answer it, whose values are drawn anew."""
        question, plan, how = self.plan()
        facts: dict[Fact, str] = {}
        ends: list[str] = []
        for subject, chain in plan:
            for relation in chain:
                fact = (subject, relation)
                # Half of the questions about "same" are answered by yes.
                same = how == "same" and ends and relation == chain[-1] and self.rng.random() < 0.5
                facts.setdefault(fact, ends[0] if same else self.value(relation))
                subject = facts[fact]
            ends.append(subject)
        text = " ".join(statement(relation, subject, value) for (subject, relation), value in facts.items())
        answer = conclusion([root for root, _ in plan], how, ends)
        if answer is None:
            return self.inference()
        return [*self.framed(question, answer, f"{text}\n"), STOP]


def asked_for(plan: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return what a question asks for, such as "birthplace of the director of X", from its roots and chains."""
    return " and the ".join(" of the ".join(reversed(chain)) + f" of {root}" for root, chain in plan)


def conclusion(roots: Sequence[str], how: str, ends: Sequence[str]) -> str | None:
    """Return the answer that follows from the ends of the roots' chains; None if neither of two is earlier."""
    if how == "same":
        return "yes" if ends[0] == ends[1] else "no"
    if how == "earlier":
        return None if ends[0] == ends[1] else min(zip(ends, roots, strict=True))[1]
    return ends[0]
