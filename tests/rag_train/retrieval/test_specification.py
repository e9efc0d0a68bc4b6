"""The grammar of retriever specifications."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.errors import UserError
from rag_train.retrieval.specification import Combination, Place, Specification, parse, split

PLACES = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from('ab/:,()"*2. '), max_size=12),
    st.sampled_from(["indexes/bm25", "http://h:8000", "milvus:x.db/c?encoder=a/b&metric=ip", "2*x", "rrf(a)"]),
).map(Place)
WEIGHTS = st.floats(0, 1e6) | st.just(1.0)


def combinations(inner: st.SearchStrategy[Specification]) -> st.SearchStrategy[Specification]:
    def fused(pairs: list[tuple[Specification, float]], name: str) -> Combination:
        return Combination(name, tuple(argument for argument, _ in pairs), tuple(weight for _, weight in pairs))

    fusion = st.builds(
        fused, st.lists(st.tuples(inner, WEIGHTS), min_size=1, max_size=3), st.sampled_from(["rrf", "weighted"])
    )
    cache = st.builds(lambda a, file: Combination("cache", (a, file), (1.0, 1.0)), inner, PLACES)
    rerank = st.builds(
        lambda a, names: Combination("rerank", (a, *names), (1.0,) * (1 + len(names))),
        inner,
        st.lists(PLACES, min_size=1, max_size=2),
    )
    return fusion | cache | rerank


@pytest.mark.slow
@given(combinations(st.recursive(PLACES, combinations, max_leaves=8)))
def test_parse_inverts_str(specification: Specification) -> None:
    assert parse(str(specification)) == specification
    assert parse(f"  {specification} ") == specification


@given(st.text(st.sampled_from('ab,()"*2. ') | st.characters(), max_size=30))
def test_any_text_is_parsed_or_rejected_in_one_line(text: str) -> None:
    try:
        specification = parse(text)
    except UserError as error:
        assert "\n" not in str(error) and "; " in str(error)
    else:
        assert parse(str(specification)) == specification


@pytest.mark.parametrize("text", ["indexes/a, b (old)", "http://127.0.0.1:8000", "2*x", "a=b", "cache (a,b)"])
def test_a_place_outside_combinations_needs_no_quotation_marks(text: str) -> None:
    assert parse(f" {text} ") == Place(text)


def test_nested_combinations_with_spaces_quotes_and_weights() -> None:
    fused = Combination("weighted", (Place("i/a"), Place('b, "c"'), Place("d e")), (1.0, 0.25, 3.0))
    expected = Combination("rerank", (fused, Place("m/ce")), (1.0, 1.0))
    assert parse('rerank( weighted(i/a,0.25 * "b, ""c""",3*d e ) ,m/ce)') == expected
    assert str(expected) == 'rerank(weighted(i/a, 0.25*"b, ""c""", 3.0*d e), m/ce)'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("rrf(a,b", "missing comma or closing parenthesis at character 8; write rrf(A, B, ...)"),
        ("rrf(a,b))", "unexpected text after the end at character 9"),
        ("rrf(a,)", "missing argument at character 7"),
        ("rrf()", "missing argument at character 5"),
        ('rrf("a', "missing quotation mark at character 5"),
        ("rrf(dir (old),b)", "missing comma or closing parenthesis at character 9"),
        ("borda(a,b)", "unknown combination 'borda'; the combinations are cache(A, FILE), rerank(A, MODEL), "),
        ("cache(a)", "wrong arguments of cache at character 9; write cache(A, FILE)"),
        ("cache(a,b,c)", "wrong arguments of cache"),
        ("cache(2*a,b)", "wrong arguments of cache"),
        ("rerank(a,rrf(b,c))", "wrong arguments of rerank at character 19; write rerank(A, MODEL)"),
        ("rrf(" * 5000, "nested too deeply"),
    ],
)
def test_errors_name_the_problem_and_its_position(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert problem in str(caught.value) and "\n" not in str(caught.value) and "; " in str(caught.value)


def test_split_at_outer_commas() -> None:
    assert split('sparse=rrf(a,b),dense=cache("x,(y",f),web=bing') == [
        "sparse=rrf(a,b)",
        'dense=cache("x,(y",f)',
        "web=bing",
    ]
    assert split("a") == ["a"]
