"""Control tokens, such as ``<|im_end|>``: only chat templates and formats write them. Text from outside is text.

A prompt is one string. In it, `MARK` stands before each control token that a chat template or a format has written.
Everything else is read as ordinary text, whatever it spells: questions, passages, and what a model has written.
`encoded` removes the marks. A mark is in prompts only, and never in a text that is stored, shown or searched for.
"""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MARK = "".join(chr(0xFDD0 + secrets.randbelow(32)) for _ in range(16))
"""Mark before a trusted control token: noncharacters of Unicode, drawn anew in each process, as the boundaries of
e-mails are, so that no text from outside can contain it."""

USUAL = re.compile(
    r"<\|[^\s<>|]{1,64}\|?>|<[^\s<>|]{1,64}\|>|<\uff5c[^\s<>\uff5c]{1,64}\uff5c>"
    r"|</?s>|<(?:seed:)?(?:bos|eos|pad|unk|mask|cls|sep|sop|eop)>|\[(?:BOS|EOS|PAD|UNK|MASK|CLS|SEP|gMASK|sMASK)\]"
    r"|<<?/?SYS>>?|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|IMG|THINK)\]"
    r"|</?(?:start|end)_of_[a-z]+>|\[\|[^\s\[\]|]{1,64}\|\]"
)
"""Control tokens of the usual vocabularies, for services whose tokenizer is unknown."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A byte of a character that the vocabulary lacks, which some tokenizers call a special token."""


class Piece(NamedTuple):
    """A part of a prompt without marks, and where it begins in the prompt with marks."""

    text: str
    start: int
    trusted: bool
    """Whether this is a trusted control token."""


@dataclass(frozen=True)
class ControlTokens:
    """A tokenizer's control tokens with their ids: its special tokens, and added tokens that look like one."""

    ids: dict[str, int] = field(default_factory=dict)
    unknown: str | None = None
    """The token for characters that the vocabulary lacks, which ordinary text may need."""

    @cached_property
    def spellings(self) -> str:
        """A regular expression of them. Without control tokens, it matches nothing."""
        return "|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or "(?!)"

    @cached_property
    def untrusted(self) -> re.Pattern[str]:
        """A pattern of those without a mark."""
        return re.compile(f"(?<!{MARK})(?:{self.spellings})")

    @cached_property
    def aliases(self) -> dict[str, str]:
        """A name for each of them that no text from outside contains."""
        return {token: f"{MARK}{token_id}{MARK}" for token, token_id in self.ids.items()}

    @cached_property
    def by_id(self) -> dict[int, str]:
        return {token_id: token for token, token_id in self.ids.items()}

    def pieces(self, prompt: str) -> list[Piece]:
        """Split a prompt at its trusted control tokens."""
        if MARK not in prompt:
            return [Piece(prompt, 0, False)]
        found, at = [], 0
        for match in re.finditer(f"{MARK}({self.spellings})?", prompt):
            found.append(Piece(prompt[at : match.start()], at, False))
            found.append(Piece(match[1] or "", match.start() + len(MARK), True))
            at = match.end()
        found.append(Piece(prompt[at:], at, False))
        return [piece for piece in found if piece.text]


_known: WeakKeyDictionary[Any, tuple[Any, ControlTokens]] = WeakKeyDictionary()
_renamed: WeakKeyDictionary[Any, tuple[Any, Tokenizer]] = WeakKeyDictionary()


def control_tokens(tokenizer: Any) -> ControlTokens:
    """Return the control tokens of ``tokenizer``; a stand-in for the tokenizer of a closed model has none."""
    if not (special := getattr(tokenizer, "all_special_tokens", None)):
        return ControlTokens()
    state = len(tokenizer), tuple(special), tokenizer.unk_token
    if _known.get(tokenizer, (None,))[0] != state:
        added = tokenizer.added_tokens_decoder.items()
        ids = {str(token): i for i, token in added if token.special or USUAL.fullmatch(str(token))}
        ids |= {token: tokenizer.convert_tokens_to_ids(token) for token in special}
        ids = {token: i for token, i in ids.items() if not _BYTE.fullmatch(token)}
        _known[tokenizer] = state, ControlTokens(ids, tokenizer.unk_token)
    return _known[tokenizer][1]


def trusted(tokenizer: Any, text: str, names: Iterable[str] | None = None) -> str:
    """Mark the control tokens in ``text``, which a chat template or a format has written.

    With ``names``, mark only these, where they are control tokens of the tokenizer.
    """
    ids = control_tokens(tokenizer).ids
    chosen = ControlTokens(ids if names is None else {name: ids[name] for name in names if name in ids})
    return chosen.untrusted.sub(lambda match: MARK + match[0], text)


def unmarked(prompt: str) -> str:
    """Return a prompt without marks."""
    return prompt.replace(MARK, "")


def defused(text: str, tokenizer: Any = None) -> str:
    """Return ``text`` with a space inside each control token, for models that take text only.

    They have a tokenizer of their own, which would read the control tokens in a passage or a question as its own
    ones. The `USUAL` ones are defused, and those of ``tokenizer``, where it is known.
    """
    for pattern in (control_tokens(tokenizer).untrusted, USUAL):
        text = pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text


def encoded(
    tokenizer: Any, prompts: Sequence[str], *, whole: bool = False
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Return the token ids of each prompt, and for each token where it starts and ends in the prompt.

    Only marked control tokens have the id of a control token. The ids of prompts without unmarked ones are those
    that the tokenizer itself gives. With ``whole``, the tokenizer adds its special tokens around the text.
    """
    control, out = control_tokens(tokenizer), []
    split = [control.pieces(prompt) for prompt in prompts]
    texts = ["".join(piece.text for piece in pieces) for pieces in split]
    encodings = tokenizer(texts, add_special_tokens=whole, return_offsets_mapping=True)
    for pieces, ids, spans in zip(split, encodings["input_ids"], encodings["offset_mapping"], strict=True):
        sources = [piece.text for piece in pieces]
        if not _is_trusted(control, pieces, ids, spans):
            sources = [control.aliases[piece.text] if piece.trusted else piece.text for piece in pieces]
            # A text of its own, not split_special_tokens: a Unigram model finds "</s>" in its vocabulary all the
            # same, and that setting knows no trusted tokens.
            encoding = _with_aliases(tokenizer, control).encode("".join(sources), add_special_tokens=whole)
            ids, spans = encoding.ids, encoding.offsets
        out.append((list(ids), _placed(pieces, sources, spans)))
    return out


def _is_trusted(
    control: ControlTokens, pieces: Sequence[Piece], ids: Sequence[int], spans: Sequence[tuple[int, int]]
) -> bool:
    """Whether all control tokens are trusted ones, apart from those that the tokenizer adds around the text."""
    begins = list(accumulate((len(piece.text) for piece in pieces), initial=0))
    for token_id, (start, end) in zip(ids, spans, strict=True):
        if start == end or (token := control.by_id.get(token_id)) is None:
            continue
        first = max(0, bisect_right(begins, start) - 1)
        near = pieces[first : bisect_left(begins, end)]  # a token may take the space before or after it
        text = "".join(piece.text for piece in near)[start - begins[first] :][: end - start]
        if token == control.unknown and text.strip() != token:
            continue
        if not any(piece.trusted and piece.text == token for piece in near) or text.strip() != token.strip():
            return False
    return True


def _placed(
    pieces: Sequence[Piece], sources: Sequence[str], spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the spans in the prompt with marks, of spans in the joined ``sources`` of its pieces."""
    if len(pieces) == 1 and pieces[0] == Piece(sources[0], 0, False):
        return [(start, end) for start, end in spans]
    begins = list(accumulate((len(source) for source in sources), initial=0))

    def place(offset: int, number: int) -> int:
        number = min(max(number, 0), len(pieces) - 1)
        return pieces[number].start + min(offset - begins[number], len(pieces[number].text))

    return [
        (0, 0)
        if start == end or not pieces
        else (place(start, bisect_right(begins, start) - 1), place(end, bisect_left(begins, end) - 1))
        for start, end in spans
    ]


def _with_aliases(tokenizer: Any, control: ControlTokens) -> Tokenizer:
    """Return a tokenizer with the same ids whose control tokens are spelled by their aliases only."""
    from tokenizers import Tokenizer

    if _renamed.get(tokenizer, (None,))[0] is not control:
        settings, names = json.loads(tokenizer.backend_tokenizer.to_str()), control.aliases
        for token in settings["added_tokens"]:
            if token["content"] in names:
                token |= {"content": names[token["content"]], "normalized": False}
        model = settings["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(text, text): i for text, i in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
        if "merges" in model:
            merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
            model["merges"] = [pair for pair in merges if not {*pair, "".join(pair)} & names.keys()]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        settings |= {"truncation": None, "padding": None}
        renamed = Tokenizer.from_str(json.dumps(settings))
        assert all(renamed.token_to_id(names[token]) == i for token, i in control.ids.items())
        _renamed[tokenizer] = control, renamed
    return _renamed[tokenizer][1]
