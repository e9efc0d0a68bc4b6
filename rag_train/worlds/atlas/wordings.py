"""How facts, questions and passages are worded.

Training, dev and test questions have different wordings, so that a model is tested neither on wordings that it was
trained on nor on those for which settings were chosen. Each subquery has one wording, the first of training.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_train.worlds.atlas.facts import Kind


@dataclass(frozen=True)
class Relation:
    """How one relation of one kind of entity is worded; ``{x}`` is the subject, ``{v}`` the object."""

    questions: tuple[str, ...]
    """Wordings of training questions; the first one is the subquery."""
    dev: str
    """Wording of dev questions."""
    test: str
    """Wording of test questions."""
    noun: str
    """The object as a noun phrase, for questions of several hops: "the capital of {x}"."""
    statements: tuple[str, ...]
    """Sentences of passages; the first one is the gold answer to the subquery."""


RELATIONS: dict[tuple[Kind, str], Relation] = {
    ("country", "capital"): Relation(
        (
            "What is the capital of {x}?",
            "Which city is the capital of {x}?",
            "Tell me the capital of {x}.",
            "Where is the seat of government of {x}?",
        ),
        "Name the capital city of {x}.",
        "What city serves as the capital of {x}?",
        "the capital of {x}",
        ("The capital of {x} is {v}.", "{v} is its capital.", "Its capital is {v}."),
    ),
    ("country", "continent"): Relation(
        (
            "On which continent is {x}?",
            "Which continent is {x} on?",
            "Tell me the continent of {x}.",
            "{x} is part of which continent?",
        ),
        "What continent does {x} belong to?",
        "Name the continent of {x}.",
        "the continent of {x}",
        ("{x} is on the continent of {v}.", "It belongs to {v}.", "It is on the continent of {v}."),
    ),
    ("country", "currency"): Relation(
        (
            "What is the currency of {x}?",
            "Which currency is used in {x}?",
            "Tell me the currency of {x}.",
            "Which money is used in {x}?",
        ),
        "What money do people in {x} pay with?",
        "Name the currency of {x}.",
        "the currency of {x}",
        ("The currency of {x} is the {v}.", "People pay with the {v}.", "The {v} is its currency."),
    ),
    ("country", "language"): Relation(
        (
            "What is the main language of {x}?",
            "Which language is mainly spoken in {x}?",
            "Tell me the main language of {x}.",
            "What do people in {x} mostly speak?",
        ),
        "Name the main language of {x}.",
        "What language do most people use in {x}?",
        "the main language of {x}",
        ("The main language of {x} is {v}.", "Its main language is {v}.", "{v} is its main language."),
    ),
    ("country", "internet domain"): Relation(
        (
            "What is the internet domain of {x}?",
            "Which top-level domain belongs to {x}?",
            "Tell me the internet domain of {x}.",
            "What is the country code of {x} on the internet?",
        ),
        "Name the internet country code of {x}.",
        "Websites of {x} end in which domain?",
        "the internet domain of {x}",
        ("The internet domain of {x} is {v}.", "Its internet domain is {v}.", "Its websites end in {v}."),
    ),
    ("country", "telephone code"): Relation(
        (
            "What is the telephone code of {x}?",
            "Which calling code does {x} have?",
            "Tell me the telephone code of {x}.",
            "Which number must be dialled before a telephone number in {x}?",
        ),
        "What do you dial to call {x} from abroad?",
        "Name the telephone country code of {x}.",
        "the telephone code of {x}",
        ("The telephone code of {x} is {v}.", "Its telephone code is {v}.", "Callers from abroad dial {v}."),
    ),
    ("country", "demonym"): Relation(
        (
            "What are the people of {x} called?",
            "How does one call the inhabitants of {x}?",
            "Give the demonym for the people of {x}.",
            "What is a person from {x} called?",
        ),
        "Name the demonym of {x}.",
        "What is the word for a person from {x}?",
        "the demonym of {x}",
        ("The people of {x} are called {v}.", "Its people are called {v}.", "Its inhabitants are known as {v}."),
    ),
    ("country", "population"): Relation(
        (
            "How many people live in {x}?",
            "What is the population of {x}?",
            "Tell me how many people {x} has.",
            "{x} is home to how many inhabitants?",
        ),
        "How many inhabitants does {x} have?",
        "State the population of {x}.",
        "the population of {x}",
        ("{x} has {v} inhabitants.", "It has {v} inhabitants.", "{v} people live there."),
    ),
    ("country", "area"): Relation(
        (
            "How large is {x}?",
            "What is the area of {x}?",
            "Give the area of {x}.",
            "How much land does {x} have?",
        ),
        "What area does {x} cover?",
        "State the area of {x}.",
        "the area of {x}",
        ("The area of {x} is {v}.", "It covers {v}.", "Its area is {v}."),
    ),
    ("city", "country"): Relation(
        (
            "In which country is {x}?",
            "Which country is {x} in?",
            "Tell me the country of {x}.",
            "{x} is a city in which country?",
        ),
        "What country is {x} located in?",
        "Name the country of the city {x}.",
        "the country where {x} is",
        ("{x} is a city in {v}.", "{x} is one of the cities of {v}.", "{x} is located in {v}."),
    ),
    ("city", "population"): Relation(
        (
            "How many people live in {x}?",
            "What is the population of {x}?",
            "Tell me how many people {x} has.",
            "{x} is home to how many inhabitants?",
        ),
        "How many inhabitants does {x} have?",
        "State the population of {x}.",
        "the population of {x}",
        ("{x} has {v} inhabitants.", "It has {v} inhabitants.", "Its population is {v}."),
    ),
    ("airport", "city"): Relation(
        (
            "Which city does {x} serve?",
            "What city is served by {x}?",
            "Tell me the city of {x}.",
            "{x} is the airport of which city?",
        ),
        "Name the city that uses {x}.",
        "Travellers who land at {x} arrive in which city?",
        "the city served by {x}",
        ("{x} serves the city of {v}.", "{x} is the airport of {v}.", "{x} is an airport that serves {v}."),
    ),
    ("airport", "IATA code"): Relation(
        (
            "What is the IATA code of {x}?",
            "Which IATA code does {x} have?",
            "Give the IATA code of {x}.",
            "Which letters stand for {x} on luggage tags?",
        ),
        "Name the three-letter code of {x}.",
        "What letters identify {x} on a ticket?",
        "the IATA code of {x}",
        ("The IATA code of {x} is {v}.", "Its IATA code is {v}.", "On tickets it is abbreviated as {v}."),
    ),
    ("region", "country"): Relation(
        (
            "In which country is {x}?",
            "Which country does {x} belong to?",
            "Tell me the country of {x}.",
            "{x} is a region of which country?",
        ),
        "What country is {x} a part of?",
        "Name the country of the region {x}.",
        "the country where {x} is",
        ("{x} is in {v}.", "{x} belongs to {v}.", "{x} is a part of {v}."),
    ),
    ("element", "symbol"): Relation(
        (
            "What is the chemical symbol of {x}?",
            "Which symbol does the element {x} have?",
            "Give the symbol of {x}.",
            "Which letters stand for {x} in the periodic table?",
        ),
        "Name the symbol of the element {x}.",
        "How is {x} abbreviated in chemistry?",
        "the chemical symbol of {x}",
        ("The chemical symbol of {x} is {v}.", "Its symbol is {v}.", "Chemists write it as {v}."),
    ),
    ("element", "atomic number"): Relation(
        (
            "What is the atomic number of {x}?",
            "Which atomic number does {x} have?",
            "Give the atomic number of {x}.",
            "What is the number of protons of {x}?",
        ),
        "How many protons does an atom of {x} have?",
        "State the atomic number of {x}.",
        "the atomic number of {x}",
        ("The atomic number of {x} is {v}.", "Its atomic number is {v}.", "It has the atomic number {v}."),
    ),
    ("element", "discovery year"): Relation(
        (
            "In which year was {x} discovered?",
            "When was {x} discovered?",
            "Tell me the year in which {x} was discovered.",
            "Since which year has {x} been known?",
        ),
        "What year was the element {x} found?",
        "State the year of the discovery of {x}.",
        "the year in which {x} was discovered",
        ("{x} was discovered in {v}.", "It was discovered in {v}.", "Its discovery dates from {v}."),
    ),
    ("element", "country"): Relation(
        (
            "In which country was {x} discovered?",
            "Where was {x} discovered?",
            "Tell me the country where {x} was discovered.",
            "{x} was first found in which country?",
        ),
        "Name the country in which the element {x} was found.",
        "What country did the discovery of {x} happen in?",
        "the country where {x} was discovered",
        ("{x} was discovered in {v}.", "The discovery took place in {v}.", "It was first found in {v}."),
    ),
    ("element", "discoverer"): Relation(
        (
            "Who discovered {x}?",
            "Who is credited with the discovery of {x}?",
            "Tell me who discovered {x}.",
            "By whom was {x} found?",
        ),
        "Name the discoverer of {x}.",
        "Which scientist found the element {x}?",
        "the discoverer of {x}",
        ("{x} was discovered by {v}.", "Its discoverer was {v}.", "{v} is credited with its discovery."),
    ),
}

COUNTRY_RELATIONS = ("capital", "continent", "currency", "language", "internet domain", "telephone code", "demonym")
"""Relations of a country that end a chain of several hops."""

CHAINS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    *(("country", (relation,)) for kind, relation in RELATIONS if kind == "country"),
    ("city", ("country",)),
    ("airport", ("city",)),
    ("airport", ("IATA code",)),
    ("region", ("country",)),
    *(("element", (relation,)) for kind, relation in RELATIONS if kind == "element"),
    *(
        (kind, ("country", relation))
        for kind in ("city", "region", "element")
        for relation in (
            "capital",
            "continent",
            "currency",
            "language",
            "internet domain",
            "telephone code",
            "demonym",
        )
    ),
    ("country", ("capital", "population")),
    ("airport", ("city", "country")),
    *(
        ("airport", ("city", "country", relation))
        for relation in (
            "capital",
            "continent",
            "currency",
            "language",
            "internet domain",
            "telephone code",
            "demonym",
        )
    ),
    *((kind, ("country", "capital", "population")) for kind in ("city", "region", "element")),
    ("airport", ("city", "country", "capital", "population")),
)
"""(kind of the first entity, relations) of the questions that follow a chain of facts."""


@dataclass(frozen=True)
class Comparison:
    """How two entities of one kind are compared; ``{x}`` and ``{y}`` are their names."""

    kind: Kind
    chain: tuple[str, ...]
    answer: str
    """larger or smaller: the entity with that object; same: yes or no."""
    questions: tuple[str, ...]
    """Wordings of training questions."""
    dev: str
    """Wording of dev questions."""
    test: str
    """Wording of test questions."""


COMPARISONS = (
    Comparison(
        "country",
        ("population",),
        "larger",
        (
            "Which country has more people, {x} or {y}?",
            "Which has the larger population, {x} or {y}?",
            "{x} or {y}: which country has more inhabitants?",
        ),
        "Do more people live in {x} or in {y}?",
        "Is the population of {x} or of {y} greater?",
    ),
    Comparison(
        "country",
        ("area",),
        "larger",
        (
            "Which country is larger, {x} or {y}?",
            "Which has the larger area, {x} or {y}?",
            "{x} or {y}: which country has more land?",
        ),
        "Of {x} and {y}, which country covers more land?",
        "Name the country with the greater area, {x} or {y}.",
    ),
    Comparison(
        "city",
        ("population",),
        "larger",
        (
            "Which city has more people, {x} or {y}?",
            "Which has the larger population, {x} or {y}?",
            "{x} or {y}: which city has more inhabitants?",
        ),
        "Do more people live in {x} or in {y}?",
        "Is the population of {x} or of {y} greater?",
    ),
    Comparison(
        "element",
        ("discovery year",),
        "smaller",
        (
            "Which element was discovered first, {x} or {y}?",
            "Which was found earlier, {x} or {y}?",
            "{x} or {y}: which element was discovered earlier?",
        ),
        "Of {x} and {y}, which element has been known for longer?",
        "Name the element that was discovered before the other, {x} or {y}.",
    ),
    Comparison(
        "city",
        ("country",),
        "same",
        (
            "Are {x} and {y} in the same country?",
            "Do {x} and {y} belong to the same country?",
            "Are the cities {x} and {y} both in one country?",
        ),
        "Is {x} in the same country as {y}?",
        "Does one country have both {x} and {y}?",
    ),
    Comparison(
        "country",
        ("continent",),
        "same",
        (
            "Are {x} and {y} on the same continent?",
            "Do {x} and {y} share a continent?",
            "Are the countries {x} and {y} both on one continent?",
        ),
        "Is {x} on the same continent as {y}?",
        "Does one continent have both {x} and {y}?",
    ),
    Comparison(
        "city",
        ("country", "continent"),
        "same",
        (
            "Are {x} and {y} on the same continent?",
            "Do the cities {x} and {y} share a continent?",
            "Are the cities {x} and {y} both on one continent?",
        ),
        "Is {x} on the same continent as {y}?",
        "Does one continent have both {x} and {y}?",
    ),
    Comparison(
        "city",
        ("country", "population"),
        "larger",
        (
            "Which city is in the country with more people, {x} or {y}?",
            "{x} or {y}: which city belongs to the country with more inhabitants?",
        ),
        "Of {x} and {y}, which city belongs to the more populous country?",
        "Is the population greater in the country of {x} or in that of {y}?",
    ),
)
