"""An engine over OpenAI-compatible servers, such as ``vllm serve``, with one or several replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from rag_train.errors import UserError
from rag_train.http import httpx
from rag_train.llm.base import Abilities, Completion, EngineError, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import encode, load_tokenizer
from rag_train.llm.guide import conform
from rag_train.llm.replicas import CONNECT_TIMEOUT, Answer, Rejected, Replicas, problem_of
from rag_train.progress import console

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenCount = Annotated[int, Field(ge=0, lt=2**31)]
Logprob = Annotated[float, Field(allow_inf_nan=False)]


class _Logprobs(BaseModel):
    tokens: list[Annotated[str, Field(min_length=1)]]
    token_logprobs: list[Logprob]
    top_logprobs: list[dict[Annotated[str, Field(min_length=1)], Logprob]]

    @model_validator(mode="after")
    def _same_lengths(self) -> _Logprobs:
        if not len(self.tokens) == len(self.token_logprobs) == len(self.top_logprobs):
            raise ValueError("the lists of log-probabilities differ in length")
        return self


class _Choice(BaseModel):
    text: str
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None


class UsageMessage(BaseModel):
    """The server's token counts."""

    prompt_tokens: TokenCount
    completion_tokens: TokenCount


class _Answer(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: UsageMessage


class _Card(BaseModel):
    """A model that a server serves. vLLM says in ``root`` which directory it was loaded from."""

    id: str
    root: str | None = None


class _Cards(BaseModel):
    data: list[_Card]


class OpenAIEngine:
    """An ``LLM`` over ``POST /v1/completions`` (see `Replicas` for the choice of a replica and for retries).

    Servers other than vLLM ignore vLLM's extensions of the protocol: guided decoding, the stop string that ended
    the text (``stop`` is then None), and token ids (the text is then tokenized again). `probe` asks for them once;
    where guided decoding does not work, the text is read as `rag_train.llm.guide` says.
    """

    def __init__(
        self, replicas: Replicas, model: str, tokenizer: PreTrainedTokenizerBase, adapters: dict[str, str]
    ):
        self.tokenizer = tokenizer
        self.name = Path(model).name
        self.abilities = Abilities()
        self.guided = True
        self._model = model
        self._adapters = adapters
        self._replicas = replicas

    @classmethod
    def start(
        cls,
        urls: Sequence[str],
        model: str,
        *,
        tokenizer: str | None = None,
        thinking: bool | None = None,
        **options: Any,
    ) -> OpenAIEngine:
        """Connect to running servers.

        Args:
            urls: addresses of the replicas, such as ``http://127.0.0.1:8000``.
            model: name under which every replica serves the model.
            tokenizer: directory or hub name of the model's tokenizer, if it is not ``model``.
            thinking: see `load_tokenizer`.
            options: see `Replicas`.

        Raises:
            UserError: if ``urls`` is empty, a replica does not answer or does not serve ``model``, or the tokenizer
                cannot be read.
        """
        replicas = Replicas(urls, **options)
        served = [_served(replica.url, model, replicas.headers) for replica in replicas.all]
        names = [{card.id: card.id for card in cards} | _by_place(cards) for cards in served]
        everywhere = {place: name for place, name in names[0].items() if all(place in each for each in names)}
        try:
            loaded = load_tokenizer(tokenizer or model, thinking)
        except UserError as error:
            raise UserError(f"{error}; give the tokenizer's directory as engine.tokenizer") from error
        return cls(replicas, model, loaded, everywhere)

    async def probe(self) -> None:
        """Ask the servers once what they can do, print it, and keep it.

        Raises EngineError if they fail, UserError if they reject the call.
        """
        asked = Sampling(max_tokens=4, choice=("yes",), logprobs=1)
        try:
            got = await self._complete("Question: Is this a test? Say no.\nAnswer:", asked)
            self.guided = got.text == "yes"
        except Rejected:
            self.guided = False
            got = await self._complete("Question: Is this a test?\nAnswer:", replace(asked, choice=None))
        console.print(
            f"{self.name}: guided decoding {yes_no(self.guided)}, log-probabilities {yes_no(bool(got.logprobs))}, "
            "continued turns yes",
            markup=False,
            soft_wrap=True,
        )

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``.

        Raises:
            ValueError: if the prompt and ``max_tokens`` do not fit the model's context.
            EngineError: if the servers fail, do not answer in time, or send a malformed answer.
            UserError: if the server rejects the request for another reason, or does not serve the adapter.
        """
        if self.guided:
            return await self._complete(prompt, sampling)
        free = await self._complete(prompt, replace(sampling, json_schema=None, choice=None, regex=None))
        text = conform(free.text, sampling)
        return free if text is None else replace(free, text=text)

    async def _complete(self, prompt: str, sampling: Sampling) -> Completion:
        # The prompt is sent as token ids: the server may not follow tokenizer.json exactly (see load_tokenizer).
        ids = encode(self.tokenizer, prompt)
        estimate = len(ids) + sampling.max_tokens
        answer = await self._replicas.post("/completions", self._request(ids, sampling), estimate)
        completion = self._completion(answer, sampling)
        self._replicas.used(estimate, completion.usage.prompt_tokens + completion.usage.completion_tokens)
        return completion

    def _completion(self, answer: Answer, sampling: Sampling) -> Completion:
        read = answer.read(_Answer)
        choice, usage = read.choices[0], Usage(**read.usage.model_dump())
        check_end(answer.url, choice.finish_reason, usage, sampling.max_tokens)
        if choice.token_ids is not None:
            token_ids = choice.token_ids
        elif choice.logprobs is not None:
            token_ids = [self._token_id(token) for token in choice.logprobs.tokens]
        else:
            token_ids = self.tokenizer(choice.text, add_special_tokens=False)["input_ids"]
        logprobs = self._logprobs(choice.logprobs)
        if logprobs and len(logprobs) != len(token_ids):
            raise EngineError(f"{answer.url}: {len(token_ids)} tokens with {len(logprobs)} log-probabilities")
        return Completion(
            text=choice.text,
            token_ids=tuple(token_ids),
            usage=usage,
            stop=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
            truncated=choice.finish_reason == "length",
            logprobs=logprobs,
        )

    def _logprobs(self, given: _Logprobs | None) -> tuple[tuple[TokenLogprob, ...], ...]:
        if given is None:
            return ()
        out = []
        for token, logprob, best in zip(given.tokens, given.token_logprobs, given.top_logprobs, strict=True):
            alternatives = sorted((best | {token: logprob}).items(), key=lambda item: -item[1])
            ids = [(self._token_id(text), value) for text, value in alternatives]
            out.append(tuple(TokenLogprob(i, str(self.tokenizer.decode([i])), value) for i, value in ids))
        return tuple(out)

    def _token_id(self, token: str) -> int:
        """Return the id in vLLM's notation ``token_id:7``, or the id of the first token of a text.

        Raises EngineError if the text has no token.
        """
        number = token.removeprefix("token_id:")
        if number != token and number.isascii() and number.isdigit() and len(number) < 10:
            return int(number)
        if ids := self.tokenizer(token, add_special_tokens=False)["input_ids"]:
            return ids[0]
        raise EngineError(f"{self.name}: the server's token {token[:20]!r} is not in the tokenizer's vocabulary")

    def _request(self, prompt: list[int], sampling: Sampling) -> dict[str, Any]:
        """Return the body of ``POST /v1/completions``, without the fields that have the protocol's default."""
        guide = {"json": sampling.json_schema, "choice": sampling.choice, "regex": sampling.regex}
        guide = {name: value for name, value in guide.items() if value}
        body = {
            "model": self._adapter(sampling.adapter) if sampling.adapter else self._model,
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            "logprobs": sampling.logprobs or None,
            "structured_outputs": guide or None,
            # Set explicitly: vLLM's defaults come from the model's generation_config.json.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "include_stop_str_in_output": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True if sampling.logprobs else None,
        }
        return {name: value for name, value in body.items() if value is not None}

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


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def check_end(url: str, reason: str | None, usage: Usage, max_tokens: int) -> None:
    """Raise EngineError if a generation was aborted, ValueError if it reached the end of the context."""
    if reason not in ("stop", "length"):
        raise EngineError(f"{url}: generation was aborted ({reason})")
    if reason == "length" and usage.completion_tokens < max_tokens:
        raise ValueError(  # vLLM generates only as many tokens as the context has room for
            f"prompt of {usage.prompt_tokens} tokens and {max_tokens} to write exceed the context"
        )


def _by_place(cards: Sequence[_Card]) -> dict[str, str]:
    """Return the names of the models by the directories that a server on this machine loaded them from."""
    return {str(Path(card.root).resolve()): card.id for card in cards if card.root and "\0" not in card.root}


def _served(url: str, model: str, headers: dict[str, str]) -> list[_Card]:
    """Return the models that a server serves. Raises UserError unless ``model`` is one of them."""
    try:
        response = httpx.get(f"{url}/models", headers=headers, timeout=CONNECT_TIMEOUT)
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise UserError(
            f"engine.urls: {url} does not answer ({error or type(error).__name__}); "
            "start the server with `vllm serve MODEL`, or correct the address"
        ) from error
    if response.status_code in (401, 403):
        raise UserError(
            f"engine.urls: {url} requires a key ({problem_of(response)}); "
            "name the environment variable that holds it as engine.key"
        )
    try:
        cards = _Cards.model_validate_json(response.content).data
    except ValidationError as error:
        raise UserError(
            f"engine.urls: {url} is not an OpenAI-compatible server (GET /v1/models: {problem_of(response)}); "
            "start a server with `vllm serve MODEL`, or correct the address"
        ) from error
    if model not in (names := [card.id for card in cards]):
        shown = ", ".join(name[:80] for name in names[:20])
        raise UserError(f"engine.urls: {url} serves {shown}, not {model}; give a served name as model")
    return cards
