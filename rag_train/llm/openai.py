"""An engine over OpenAI-compatible servers, such as ``vllm serve``, with one or several replicas."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from pydantic import BaseModel, Field, ValidationError, model_validator

from rag_train.errors import PromptTooLong, Refused, UserError
from rag_train.formats.prompting import as_turn
from rag_train.llm.base import Abilities, Completion, EngineError, Sampling, TokenLogprob
from rag_train.llm.checkpoint import encode, load_tokenizer
from rag_train.llm.control import unmarked
from rag_train.llm.problems import DOUBTFUL, Doubts, Rejected, check_extra, describe, names, refused
from rag_train.llm.replicas import CONNECT_TIMEOUT, Answer, Replica, Replicas
from rag_train.llm.replies import (
    SHORTEST_CONTEXT,
    Logprobs,
    Named,
    Token,
    TokenId,
    UsageMessage,
    ended_by_limit,
    first_stop,
    yes_no,
)
from rag_train.llm.thoughts import after_thoughts, has_thoughts
from rag_train.llm.unguided import conform
from rag_train.progress import say
from rag_train.retrieval.corpus import encodable

EXTENSIONS = (
    "structured_outputs",
    "top_k",
    "min_p",
    "repetition_penalty",
    "include_stop_str_in_output",
    "no_stop_trim",
    "return_token_ids",
    "return_tokens_as_token_ids",
)
"""vLLM's and SGLang's extensions of the protocol, which other servers ignore or reject."""
OPTIONAL = ("logprobs", "seed", "presence_penalty", "frequency_penalty", "top_p")
"""Fields of the protocol that some servers reject."""
_CONTROL = "Question: Is this a test?\nAnswer:"
_TEXT_ONLY = re.compile(r"string|array|sequence|\blist\b", re.IGNORECASE)
_LEAST_READ = 0.9
"""Share of a prompt's tokens that a server has to count at least, or else it has cut the prompt."""


class _Choice(BaseModel):
    text: str | None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    """SGLang's name for vLLM's ``stop_reason``."""
    token_ids: list[TokenId] | None = None
    logprobs: Logprobs | None = None


class _Answer(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: UsageMessage | None = None


class _Card(BaseModel):
    """A model that a server serves. vLLM says in ``root`` which directory it was loaded from."""

    id: str
    root: str | None = None
    max_model_len: int | None = None
    """Length of the context."""


class _Cards(BaseModel):
    data: list[_Card]

    @model_validator(mode="before")
    @classmethod
    def _in_data(cls, given: Any) -> Any:
        """Together's list stands alone."""
        return {"data": given} if isinstance(given, list) else given


class OpenAIEngine:
    """An ``LLM`` over ``POST /v1/completions`` (see `Replicas` for the choice of a replica and for retries).

    `probe` asks once which of vLLM's extensions of the protocol the server has, and the engine does without the
    others:

    - Without guided decoding, the text is read as `rag_train.llm.unguided` says.
    - A server that does not name the stop string that ended a text is asked to leave it in the text, or else gets
      no stop strings; the text is then cut here.
    - Without token ids, the text is tokenized again. A server that takes prompts as text only gets the text, if it
      reads the same tokens in it.

    Args:
        replicas: the servers.
        model: name under which every replica serves the model.
        tokenizer: directory or hub name of the model's tokenizer, if it is not ``model``.
        thinking: see `load_tokenizer`.
        extra: further fields of each request.

    Raises:
        UserError: if a replica does not answer or lists its models without ``model``, or the tokenizer cannot be
            read.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: str,
        *,
        tokenizer: str | None = None,
        thinking: bool | None = None,
        extra: Mapping[str, Any] | None = None,
    ):
        served = [_served(replica, model, replicas.headers) for replica in replicas.all]
        names = [{card.id: card.id for card in cards} | _by_place(cards) for cards in served]
        lengths = [card.max_model_len for cards in served for card in cards if card.id == model]
        try:
            self.tokenizer = load_tokenizer(tokenizer or model, thinking)
        except UserError as error:
            raise UserError(f"{error}; give the tokenizer's directory as engine.tokenizer") from error
        self.name = Path(model).name
        self.abilities = Abilities()
        self._replicas = replicas
        self._model = model
        self._adapters = {place: name for place, name in names[0].items() if all(place in each for each in names)}
        self._context = min((length for length in lengths if length), default=None)
        self._extra = dict(extra or {})
        self._doubts = Doubts(lambda sampling: self._complete(_CONTROL, sampling))
        self._left_out: set[str] = set()
        """Fields that the server rejects."""
        self._stops: Literal["named", "included", "found"] = "named"
        """Who finds the stop string: the server, which names it or leaves it in the text, or this engine alone."""
        self._seen: set[str] = set()
        """Ways in which the server has told the end at a stop string."""
        self._as_text = False
        self._probing = False
        self._counts = False
        """Whether the server counts a prompt's tokens as the tokenizer does."""

    async def probe(self) -> None:
        """Ask the servers with a few short calls what they can do, print it, and keep it.

        Raises EngineError if they fail, UserError if they reject the calls or read other tokens in a prompt.
        """
        self._probing = self._counts = True
        asked = Sampling(max_tokens=4, choice=("yes",), logprobs=1, thoughts=True)
        got = await self._first("Question: Is this a test? Say no.\nAnswer:", asked)
        guided = "structured_outputs" not in self._left_out and got.text == "yes"
        thinks = await self._probe_stops()
        self._probing = False
        if self._as_text and not self._counts:
            raise UserError(
                f"engine.urls: {self._replicas.all[0].url} takes prompts as text only, and does not read the same "
                "tokens in it as the tokenizer; give --engine chat (engine.kind: chat in a recipe)"
            )
        self.abilities = Abilities(logprobs=bool(got.logprobs), guided=guided, thinks=thinks)
        self._print()

    async def _probe_stops(self) -> bool:
        """Find out how the end at a stop string is told. Return whether the model thinks before it answers."""
        prompt = as_turn(self.tokenizer, "Count from one to six, in words.\n")
        asked = Sampling(max_tokens=16, stop=(" ", "\n", ".", ","), thoughts=True)
        ways: tuple[Literal["named", "included", "found"], ...] = ("named", "included", "found")
        thinks = False
        for self._stops in ways:
            got = await self._first(prompt, asked)
            thinks = thinks or has_thoughts(got.text)
            if self._stops in self._seen:
                break
        return thinks

    def _print(self) -> None:
        can = self.abilities
        line = f"{self.name}: guided decoding {yes_no(can.guided)}, log-probabilities {yes_no(can.logprobs)}"
        line += (
            ", continued turns yes, stop strings "
            + {
                "named": "named by the server",
                "included": "left in the text and cut here",
                "found": "not sent, but found and cut here",
            }[self._stops]
        )
        if self._as_text:
            line += ", prompts sent as text"
        if left := self._left_out & set(OPTIONAL):
            line += f", no {', '.join(sorted(left))}"
        if can.thinks:
            line += "; the model thinks before it answers: set engine.thinking=false, or use --engine chat"
        say(line)

    async def _first(self, prompt: str, sampling: Sampling) -> Completion:
        """Make a call of the probe. What the server rejects is not sent again."""
        while True:
            try:
                return await self._complete(prompt, sampling)
            except (Rejected, Refused) as error:
                self._do_without(error)

    def _do_without(self, error: Rejected | Refused) -> None:
        """Leave out what ``error`` names, or else what servers may not know; raise ``error`` if nothing is left."""
        left = [name for name in (*EXTENSIONS, *OPTIONAL) if name not in self._left_out]
        named = [name for name in left if name not in self._extra and names(error, name)]
        if isinstance(error, Rejected) and error.problem.status not in DOUBTFUL:
            raise error
        check_extra(error, () if named else self._extra)
        if named:
            self._left_out.add(named[0])
        elif not self._as_text and _TEXT_ONLY.search(str(error)):
            self._as_text = True
        elif set(EXTENSIONS) & set(left):
            self._left_out.update(EXTENSIONS)
        elif left:
            self._left_out.update(OPTIONAL)
        elif not self._as_text:
            self._as_text = True
        else:
            raise error

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``.

        Raises:
            Refused: if the server refuses the prompt, for example because it does not fit the model's context.
            EngineError: if the servers fail, do not answer in time, or send a malformed answer.
            UserError: if the server rejects the request's settings, or does not serve the adapter.
        """
        guided = self.abilities.guided
        asked = sampling if guided else replace(sampling, json_schema=None, choice=None, regex=None)
        try:
            got = await self._complete(prompt, asked)
        except Rejected as error:
            raise await self._doubts.refusal(error, asked) from error
        text = None if guided or got.truncated else conform(got.text, sampling)
        return got if text is None else replace(got, text=text)

    async def _complete(self, prompt: str, sampling: Sampling) -> Completion:
        # The prompt is sent as token ids: the server may not follow tokenizer.json exactly (see load_tokenizer).
        prompt = encodable(prompt)
        ids = encode(self.tokenizer, prompt)
        estimate = len(ids) + sampling.max_tokens
        body = self._request(self._text(prompt, ids) if self._as_text else ids, sampling)
        answer = await self._replicas.post("/completions", body, estimate)
        completion = self._completion(answer, sampling, len(ids))
        self._replicas.used(estimate, completion.usage.prompt_tokens + completion.usage.completion_tokens)
        return completion

    def _text(self, prompt: str, ids: list[int]) -> str:
        """Return the text in which a server with the same tokenizer reads ``ids``; raises Refused without one."""
        plain, begin = unmarked(prompt), str(self.tokenizer.bos_token or "")
        for text in (plain, plain.removeprefix(begin)):
            if self.tokenizer(text)["input_ids"] == ids:
                return text
        raise refused("impossible text", "the server takes text only, and would read control tokens in the prompt")

    def _completion(self, answer: Answer, sampling: Sampling, sent: int) -> Completion:
        read = answer.read(_Answer)
        choice, told = read.choices[0], read.usage or UsageMessage()
        self._check_read(answer.url, told.prompt_tokens, sent)
        whole = choice.text or ""
        text = whole if sampling.thoughts else after_thoughts(whole)
        if text is None:
            raise refused(
                "unclosed thought",
                f"{answer.url}: the model thinks, and no answer follows; set engine.thinking=false, or use "
                "--engine chat",
            )
        cut, stop = first_stop(text, sampling.stop)
        begin, end = len(whole) - len(text), len(whole) - len(text) + cut + len(stop or "")
        ids, logprobs = self._tokens(answer.url, choice, whole, begin, end)
        usage = told.usage(sent, len(ids))
        limited = ended_by_limit(answer.url, choice.finish_reason, usage.completion_tokens, sampling.max_tokens)
        named = next((name for name in (choice.stop_reason, choice.matched_stop) if isinstance(name, str)), None)
        self._seen |= {"named"} if named else {"included"} if stop and end == len(whole) else set()
        stop = stop or named
        if limited and self._context and usage.prompt_tokens + usage.completion_tokens >= self._context:
            raise PromptTooLong(  # vLLM generates only as many tokens as the context has room for
                f"prompt of {usage.prompt_tokens} tokens and {sampling.max_tokens} to write exceed the context"
            )
        return Completion(
            text=text[:cut],
            token_ids=ids,
            usage=usage,
            stop=stop,
            truncated=limited and stop is None,
            logprobs=logprobs,
        )

    def _check_read(self, url: str, told: int | None, sent: int) -> None:
        """Raise PromptTooLong if the server has read only a part of the prompt.

        Servers that count otherwise than the tokenizer, which the calls of the probe show, cannot be checked.
        """
        if self._probing and told != sent:
            self._counts = False
        if self._counts and told is not None and SHORTEST_CONTEXT <= told < _LEAST_READ * sent:
            raise PromptTooLong(
                f"{url}: the server has cut the prompt, to {told} of {sent} tokens; give it more context"
            )

    def _tokens(
        self, url: str, choice: _Choice, whole: str, begin: int, end: int
    ) -> tuple[tuple[int, ...], tuple[tuple[TokenLogprob, ...], ...]]:
        """Return ids and log-probabilities of the tokens of ``whole[begin:end]``."""
        tokens = choice.logprobs.content or [] if choice.logprobs else []
        logprobs = [self._alternatives(token) for token in tokens]
        if choice.token_ids is not None:
            ids = choice.token_ids
        elif tokens:
            ids = [self._token_id(token) for token in tokens]
        else:
            return tuple(self.tokenizer(whole[begin:end], add_special_tokens=False)["input_ids"]), ()
        if logprobs and len(logprobs) != len(ids):
            raise EngineError(f"{url}: {len(ids)} tokens with {len(logprobs)} log-probabilities")

        def length(number: int) -> int:
            return len(str(self.tokenizer.decode(ids[:number])))

        first = bisect_left(range(len(ids)), begin + 1, key=lambda i: length(i + 1)) if begin else 0
        last = bisect_left(range(len(ids)), end, key=lambda i: length(i + 1)) + 1 if end < len(whole) else len(ids)
        return tuple(ids[first:last]), tuple(logprobs[first:last])

    def _alternatives(self, token: Token) -> tuple[TokenLogprob, ...]:
        ids = [(self._token_id(each), value) for each, value in token.alternatives()]
        return tuple(TokenLogprob(i, str(self.tokenizer.decode([i])), value) for i, value in ids)

    def _token_id(self, token: Named) -> int:
        """Return the token's id: the server's, that in vLLM's notation ``token_id:7``, or the first of its text.

        Raises EngineError if the text has no token.
        """
        if token.id is not None:
            return token.id
        number = token.token.removeprefix("token_id:")
        if number != token.token and number.isascii() and number.isdigit() and len(number) < 10:
            return int(number)
        if ids := self.tokenizer(token.token, add_special_tokens=False)["input_ids"]:
            return ids[0]
        raise EngineError(
            f"{self.name}: the server's token {token.token[:20]!r} is not in the tokenizer's vocabulary"
        )

    def _request(self, prompt: list[int] | str, sampling: Sampling) -> dict[str, Any]:
        """Return the body of ``POST /v1/completions``, without the fields that have the protocol's default."""
        stops = {"named": sampling.stop, "included": sampling.stop[:4], "found": ()}[self._stops]
        included = self._stops == "included"
        guide = {"json": sampling.json_schema, "choice": sampling.choice, "regex": sampling.regex}
        guide = {name: value for name, value in guide.items() if value}
        body = {
            "model": self._adapter(sampling.adapter) if sampling.adapter else self._model,
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(stops) or None,
            "logprobs": sampling.logprobs or None,
            "structured_outputs": guide or None,
            # Set explicitly: vLLM's defaults come from the model's generation_config.json.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "include_stop_str_in_output": included,
            "no_stop_trim": included or None,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True if sampling.logprobs else None,
        }
        sent = {name: value for name, value in body.items() if value is not None and name not in self._left_out}
        return sent | self._extra

    def _adapter(self, place: str) -> str:
        """Return the name under which the servers serve the adapter ``place``, its name or directory there."""
        for known in (place, str(Path(place).resolve())):
            if known in self._adapters:
                return self._adapters[known]
        raise UserError(
            f"adapter {place}: {self._replicas.all[0].url} does not serve it; start the server with "
            f"`--enable-lora --lora-modules NAME={place}`"
        )

    async def aclose(self) -> None:
        await self._replicas.aclose()


def _by_place(cards: Sequence[_Card]) -> dict[str, str]:
    """Return the names of the models by the directories that a server on this machine loaded them from."""
    return {str(Path(card.root).resolve()): card.id for card in cards if card.root and "\0" not in card.root}


def _served(replica: Replica, model: str, headers: dict[str, str]) -> list[_Card]:
    """Return the models that a server serves; a server without such a list is taken to serve ``model``.

    Raises UserError if ``model`` is not one of them.
    """
    url = replica.url
    try:
        response = httpx.get(f"{url}/models{replica.query}", headers=headers, timeout=CONNECT_TIMEOUT)
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise UserError(
            f"engine.urls: {url} does not answer ({error or type(error).__name__}); "
            "start the server with `vllm serve MODEL`, or correct the address"
        ) from error
    if response.status_code in (401, 403):
        raise UserError(
            f"engine.urls: {url} requires a key ({describe(response)}); "
            "name the environment variable that holds it as engine.key"
        )
    if response.status_code in (404, 405, 501):
        return [_Card(id=model)]
    try:
        cards = _Cards.model_validate_json(response.content).data
    except ValidationError as error:
        raise UserError(
            f"engine.urls: {url} is not an OpenAI-compatible server (GET /v1/models: {describe(response)}); "
            "start a server with `vllm serve MODEL`, or correct the address"
        ) from error
    if model not in (names := [card.id for card in cards]):
        shown = ", ".join(name[:80] for name in names[:20])
        raise UserError(f"engine.urls: {url} serves {shown}, not {model}; give a served name as model")
    return cards
