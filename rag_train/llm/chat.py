"""An engine over chat completions: the protocol of closed models, as OpenAI, Azure and gateways serve it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from rag_train.errors import UserError
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.control import defused
from rag_train.llm.guide import conform, instruct, is_guided
from rag_train.llm.openai import Logprob, UsageMessage, check_end, yes_no
from rag_train.llm.replicas import Answer, Rejected, Replicas
from rag_train.progress import console

TURN = "\x1e"
"""Separator of the user's turn and the beginning of the assistant's turn in a prompt (ASCII's record separator)."""
THINKING_TOKENS = 8192
"""Number of tokens that a thinking model may use in addition to those of its answer."""
OPTIONAL = {
    "logprobs": "logprobs",
    "continue_final_message": "continue_final_message",
    "add_generation_prompt": "continue_final_message",
    "chat_template_kwargs": "chat_template_kwargs",
    "seed": "seed",
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
}
"""Names in servers' complaints, and the fields that calls then do without."""

_TEST = json.dumps({"type": "object", "properties": {"test": {"type": "string", "enum": ["yes"]}}})


class ChatTokenizer:
    """A stand-in for the tokenizer of a closed model, with one token for each byte: an upper limit.

    Its chat template separates the turns with `TURN`, for `ChatEngine` to split.
    """

    chat_template = "chat completions"
    bos_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode(errors="replace"))}

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return "".join(message["content"].replace(TURN, " ") for message in messages) + TURN


class _Alternative(BaseModel):
    token: str
    logprob: Logprob


class _Token(_Alternative):
    top_logprobs: list[_Alternative] = Field(default_factory=list)


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None
    logprobs: _Logprobs | None = None


class _Answer(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: UsageMessage


class ChatEngine:
    """An ``LLM`` over ``POST /v1/chat/completions`` (see `Replicas` for retries and rate limits).

    `probe` finds out which parts of the protocol the server has, and the engine does without the others:

    - Guided decoding is requested as ``response_format`` with a JSON schema, else as JSON mode, else in words. An
      answer that still does not fit is asked for once more.
    - The beginning of the assistant's turn is continued by the model, or else stands at the end of the user's turn.
    - Control tokens in the messages, such as ``<|im_end|>`` in a passage, are sent with a space inside, because the
      server's tokenizer would read them as its own (`rag_train.llm.control.defused`).
    - The text is cut at stop strings here: most servers do not say which of them ended it, or take at most four.

    Token counts are the server's. The prices are dollars per million tokens of input and of output; with them, the
    cost is printed at the end.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: str,
        *,
        thinking: bool | None = None,
        prices: tuple[float, float] = (0.0, 0.0),
    ):
        self.name = model
        self.abilities = Abilities()
        self.tokenizer: Any = ChatTokenizer()
        self._calls = 0
        self._used = Usage(0, 0)
        self._replicas = replicas
        self._thinking = thinking
        self._prices = prices
        self._refused: set[str] = set()
        self._continues = False
        self._guide = "json_schema"

    async def probe(self) -> None:
        """Ask the server with two short calls what it can do, print it, and keep it.

        Raises EngineError if it fails, UserError if it does not accept the key or the model.
        """
        prompt = self.tokenizer.apply_chat_template([{"content": "Is this a test? Say no, in JSON."}])
        got = await self._try(prompt, Sampling(max_tokens=16, seed=0, json_schema=_TEST, logprobs=1))
        if self._guide == "json_schema" and '"yes"' not in got.text:
            self._guide = "none"
        self._continues = True
        counting = self.tokenizer.apply_chat_template([{"content": "Count from one to six, in words."}])
        counted = await self._try(f"{counting}one two three", Sampling(max_tokens=16))
        self._continues = counted.text.strip(" ,").lower().startswith("four")
        console.print(
            f"{self.name}: guided decoding {self._guide}, log-probabilities {yes_no(bool(got.logprobs))}, "
            f"continued turns {yes_no(self._continues)}",
            markup=False,
            soft_wrap=True,
        )

    async def _try(self, prompt: str, sampling: Sampling, again: Sequence[dict[str, str]] = ()) -> Completion:
        """Make a call, with further turns ``again``. What the server rejects is not sent again."""
        while True:
            abilities = self._guide, frozenset(self._refused)
            try:
                return await self._complete([*self._messages(prompt, sampling), *again], sampling)
            except Rejected as error:
                if abilities == (self._guide, frozenset(self._refused)):  # unless another call has learned it
                    self._do_without(error)

    def _do_without(self, error: Rejected) -> None:
        """Give up the part of the protocol that ``error`` names. Raises ``error`` if it names none."""
        named = [field for name, field in OPTIONAL.items() if name in error.problem and field not in self._refused]
        if not error.problem.startswith(("status 400", "status 422")):
            raise error
        if self._guide != "none" and ("response_format" in error.problem or "json_schema" in error.problem):
            self._guide = {"json_schema": "json_object", "json_object": "none"}[self._guide]
        elif not named:
            raise error
        elif named[0] == "chat_template_kwargs" and not self._thinking:
            raise UserError(f"engine.thinking: {error.problem}; the server cannot switch thinking off")
        else:
            self._refused.add(named[0])

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Answer ``prompt``, whose turns `ChatTokenizer` has separated.

        Raises:
            ValueError: if the prompt and ``max_tokens`` do not fit the model's context.
            EngineError: if the servers fail, do not answer in time, or send a malformed answer.
            UserError: if the server rejects the request for another reason, or the call selects an adapter.
        """
        if sampling.adapter:
            raise UserError(f"adapter {sampling.adapter}: {self.name} is a closed model; give a model of your own")
        first = await self._try(prompt, sampling)
        if (text := conform(first.text, sampling)) is not None:
            return replace(first, text=text)
        again = [{"role": "assistant", "content": first.text}, {"role": "user", "content": instruct(sampling)}]
        second = await self._try(prompt, sampling, again)
        tokens = Usage(
            first.usage.prompt_tokens + second.usage.prompt_tokens,
            first.usage.completion_tokens + second.usage.completion_tokens,
        )
        return replace(second, text=conform(second.text, sampling) or second.text, usage=tokens)

    def _messages(self, prompt: str, sampling: Sampling) -> list[dict[str, str]]:
        """Return the turns of a prompt."""
        user, _, lead = prompt.partition(TURN)
        wish = instruct(sampling) if self._guide != "json_schema" else ""
        if lead.strip() and self._continues and not is_guided(sampling):
            return [{"role": "user", "content": user}, {"role": "assistant", "content": lead}]
        return [{"role": "user", "content": "\n\n".join(filter(None, (user, wish, lead.strip())))}]

    async def _complete(self, messages: list[dict[str, str]], sampling: Sampling) -> Completion:
        messages = [message | {"content": defused(message["content"])} for message in messages]
        body = self._request(messages, sampling)
        estimate = sum(len(message["content"]) for message in messages) // 4 + sampling.max_tokens
        answer = await self._replicas.post("/chat/completions", body, estimate)
        completion = self._completion(answer, sampling, messages[-1]["content"])
        used = completion.usage
        self._replicas.used(estimate, used.prompt_tokens + used.completion_tokens)
        self._calls += 1
        self._used = Usage(
            self._used.prompt_tokens + used.prompt_tokens, self._used.completion_tokens + used.completion_tokens
        )
        return completion

    def _request(self, messages: list[dict[str, str]], sampling: Sampling) -> dict[str, Any]:
        """Return the body of a call, without the fields that the server rejects."""
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        continued = messages[-1]["role"] == "assistant"
        fields = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.top_p != 1 else None,
            "seed": sampling.seed,
            "logprobs": sampling.logprobs > 0 or None,
            "response_format": self._response_format(sampling),
            # Extensions of vLLM and SGLang; other servers continue a last message of the assistant by themselves.
            "continue_final_message": continued or None,
            "chat_template_kwargs": None if self._thinking is None else {"enable_thinking": self._thinking},
        }
        fields = {name: value for name, value in fields.items() if name not in self._refused}
        if fields.get("logprobs"):
            fields["top_logprobs"] = min(sampling.logprobs, 20)
        if fields.get("continue_final_message"):
            fields["add_generation_prompt"] = False
        fields |= {limit: sampling.max_tokens + (THINKING_TOKENS if self._thinking else 0)}
        fields |= {"model": self.name, "messages": messages}
        return {name: value for name, value in fields.items() if value is not None}

    def _response_format(self, sampling: Sampling) -> dict[str, Any] | None:
        """Return the request for JSON: of a schema, or of any object."""
        if sampling.regex or not is_guided(sampling) or self._guide == "none":
            return None
        if self._guide == "json_object":
            return None if _is_wrapped(sampling) else {"type": "json_object"}
        schema = {"name": "answer", "strict": True, "schema": _schema(sampling)}
        return {"type": "json_schema", "json_schema": schema}

    def _completion(self, answer: Answer, sampling: Sampling, last: str) -> Completion:
        read = answer.read(_Answer)
        choice, usage = read.choices[0], Usage(**read.usage.model_dump())
        if choice.finish_reason != "content_filter":  # a refusal is an answer: asking again would not change it
            check_end(answer.url, choice.finish_reason, usage, 0 if self._thinking else sampling.max_tokens)
        raw = choice.message.content or ""
        text = _without_lead(raw.rpartition("</think>")[2].lstrip("\n"), last)
        cut, stop = min(((text.index(s), s) for s in sampling.stop if s in text), default=(len(text), None))
        tokens = choice.logprobs.content or [] if choice.logprobs else []
        begin = len(raw) - len(text)
        ids, logprobs = _alternatives(tokens, begin, begin + cut)
        if self._guide == "json_schema" and _is_wrapped(sampling):
            text = _unwrapped(text)
        return Completion(
            text=text[:cut] if stop is not None else text,
            token_ids=ids,
            usage=usage,
            stop=stop,
            truncated=choice.finish_reason == "length" and stop is None,
            logprobs=logprobs,
        )

    @property
    def cost(self) -> float:
        """Dollars for the calls so far."""
        return (self._used.prompt_tokens * self._prices[0] + self._used.completion_tokens * self._prices[1]) / 1e6

    async def aclose(self) -> None:
        """Close the connections, and print the calls, tokens and cost."""
        await self._replicas.aclose()
        tokens = f"{self._used.prompt_tokens:,} tokens read, {self._used.completion_tokens:,} written"
        cost = f", ${self.cost:,.2f}" if any(self._prices) else ""
        console.print(f"{self.name}: {self._calls:,} calls, {tokens}{cost}", markup=False, soft_wrap=True)


def _is_wrapped(sampling: Sampling) -> bool:
    """Whether the answer is a field of an object, because OpenAI demands an object as the schema's root."""
    return not sampling.regex and (
        bool(sampling.choice) or json.loads(sampling.json_schema or "{}").get("type") != "object"
    )


def _schema(sampling: Sampling) -> dict[str, Any]:
    """Return the JSON schema of an answer, an object."""
    if sampling.choice:
        schema: dict[str, Any] = {"type": "string", "enum": [choice.strip() for choice in sampling.choice]}
    else:
        schema = json.loads(sampling.json_schema or "{}")
    if not _is_wrapped(sampling):
        return _strict(schema)
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return _strict({"type": "object", "properties": {"answer": schema}} | definitions)


def _strict(schema: Any) -> Any:
    """Return a schema as OpenAI demands it: objects have all their properties and no others, texts no limit."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(item) for name, item in schema.items() if name not in ("default", "maxLength")}
    if isinstance(schema.get("properties"), dict):
        strict |= {"required": list(schema["properties"]), "additionalProperties": False}
    return strict


def _unwrapped(text: str) -> str:
    """Return the answer in an object, or ``text`` if it is not such an object."""
    try:
        answer = json.loads(text)["answer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _without_lead(text: str, last: str) -> str:
    """Return a reply without the last line of its prompt ("Answer:"), which models repeat."""
    lead = last.rpartition("\n")[2].strip()
    return text.removeprefix(lead) if lead.endswith(":") else text


def _alternatives(
    tokens: Sequence[_Token], begin: int, end: int
) -> tuple[tuple[int, ...], tuple[tuple[TokenLogprob, ...], ...]]:
    """Return ids and log-probabilities of the tokens from ``begin`` to ``end``; the ids are numbers of our own."""
    ids: dict[str, int] = {}
    chosen, logprobs, at = [], [], 0
    for token in tokens:
        if at + len(token.token) > begin and at < end:
            given = {each.token: each.logprob for each in (*token.top_logprobs, token)}
            best = sorted(given.items(), key=lambda item: -item[1])
            logprobs.append(tuple(TokenLogprob(ids.setdefault(text, len(ids)), text, p) for text, p in best))
            chosen.append(ids[token.token])
        at += len(token.token)
    return tuple(chosen), tuple(logprobs)
