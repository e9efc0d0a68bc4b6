"""An engine over chat completions: the protocol of closed models, as OpenAI, Azure and gateways serve it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from rag_train.errors import PromptTooLong, Refused, UserError
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.control import defused
from rag_train.llm.problems import DOUBTFUL, Doubts, Rejected, check_extra, names, refused
from rag_train.llm.replicas import Answer, Replicas
from rag_train.llm.replies import (
    SHORTEST_CONTEXT,
    Logprobs,
    Token,
    UsageMessage,
    ended_by_limit,
    first_stop,
    yes_no,
)
from rag_train.llm.thoughts import after_thoughts, has_thoughts
from rag_train.llm.unguided import conform, instruct
from rag_train.progress import say
from rag_train.retrieval.corpus import encodable

TURN = "\x1e"
"""Separator of the user's turn and the beginning of the assistant's turn in a prompt (ASCII's record separator)."""
OPTIONAL = {
    "top_logprobs": "logprobs",
    "logprobs": "logprobs",
    "continue_final_message": "continue_final_message",
    "add_generation_prompt": "continue_final_message",
    "chat_template_kwargs": "chat_template_kwargs",
    "seed": "seed",
    "temperature": "temperature",
    "max_tokens": "max_tokens",
}
"""Names in servers' complaints about the calls of the probe, and the fields that all calls then do without."""
PROBE_TOKENS = 1024
"""Tokens of a call of the probe whose answer was cut, to see the end of thoughts without a beginning."""
MOST_CHARACTERS = 8
"""Most characters of a prompt to a token, on average; English text has about four."""

_SPENT = re.compile(r"max_(completion_)?tokens.{0,60}reached|could not finish the message")
_TEXTS = ("text", "output_text")
_CONTROL = "Is this a test?" + TURN
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
        return "\n\n".join(message["content"].replace(TURN, " ") for message in messages) + TURN


class _Message(BaseModel):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None

    @property
    def text(self) -> str:
        """The content, or the texts of its parts."""
        parts = self.content if isinstance(self.content, list) else [{"type": "text", "text": self.content or ""}]
        parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
        return "".join(
            part["text"] for part in parts if part.get("type") in _TEXTS and isinstance(part.get("text"), str)
        )

    @property
    def thinks(self) -> bool:
        """Whether thoughts stand beside the text."""
        parts = self.content if isinstance(self.content, list) else ()
        apart = any(isinstance(part, dict) and part.get("type") in ("thinking", "reasoning") for part in parts)
        return apart or bool(self.reasoning_content or self.reasoning or self.thinking)


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Answer(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: UsageMessage | None = None


@dataclass(frozen=True)
class _Reply:
    """A completion, and what it shows of the model's thoughts."""

    completion: Completion
    thinks: bool
    """Whether the model thinks before it answers."""
    spent: bool
    """Whether the thoughts left no tokens for the answer."""


class ChatEngine:
    """An ``LLM`` over ``POST /v1/chat/completions`` (see `Replicas` for retries and rate limits).

    `probe` finds out which parts of the protocol the server has, and the engine does without the others:

    - Guided decoding is requested as ``response_format`` with a JSON schema, else as JSON mode, else in words. An
      answer that still does not fit is asked for once more.
    - The beginning of the assistant's turn is continued by the model, or else stands at the end of the user's turn.
    - Control tokens in the messages, such as ``<|im_end|>`` in a passage, are sent with a space inside, because the
      server's tokenizer would read them as its own (`rag_train.llm.control.defused`).
    - The text is cut at stop strings here: most servers do not say which of them ended it, or take at most four.
    - A model that thinks gets tokens for its thoughts, which are not part of the text.

    Token counts are the server's. The prices are dollars per million tokens of input and of output; with them, the
    cost is printed at the end.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: str,
        *,
        thinking: bool | None = None,
        thinking_tokens: int = 8192,
        prices: tuple[float, float] = (0.0, 0.0),
        extra: Mapping[str, Any] | None = None,
    ):
        self.name = model
        self.abilities = Abilities(thinks=bool(thinking))
        self.tokenizer: Any = ChatTokenizer()
        self._calls = 0
        self._uncounted = 0
        self._used = Usage(0, 0)
        self._replicas = replicas
        self._doubts = Doubts(lambda sampling: self._ask(self._messages(_CONTROL, sampling), sampling))
        self._thinking = thinking
        self._thinking_tokens = thinking_tokens
        self._prices = prices
        self._extra = dict(extra or {})
        self._refused: set[str] = set()
        self._continues = False
        self._guide = "json_schema"
        self._counts = False
        """Whether the server's count of a prompt's tokens follows the prompt's length."""

    async def probe(self) -> None:
        """Ask the server with a few short calls what it can do, print it, and keep it.

        Raises EngineError if it fails, UserError if it does not accept the key or the model, or if the model's
        thoughts take all tokens.
        """
        prompt = self.tokenizer.apply_chat_template([{"content": "Is this a test? Say no, in JSON."}])
        asked = Sampling(max_tokens=16, seed=0, json_schema=_TEST, logprobs=1)
        got = await self._first(prompt, asked)
        if got.truncated and not self.abilities.thinks:
            got = await self._first(prompt, replace(asked, max_tokens=PROBE_TOKENS))
        if self._guide == "json_schema" and '"yes"' not in got.text:
            self._guide = "none"
        self._continues = True
        counting = self.tokenizer.apply_chat_template(
            [{"content": "Count from one to six, in words. Write them on one line, and write nothing else."}]
        )
        counted = await self._first(f"{counting}one two three", Sampling(max_tokens=16))
        self._continues = counted.text.strip(" ,").lower().startswith("four")
        self._counts = 0 < got.usage.prompt_tokens < counted.usage.prompt_tokens
        self.abilities = replace(
            self.abilities,
            logprobs=bool(got.logprobs),
            guided=self._guide == "json_schema",
            continues=self._continues,
        )
        self._print()

    def _print(self) -> None:
        can = self.abilities
        line = f"{self.name}: guided decoding {self._guide}, log-probabilities {yes_no(can.logprobs)}, "
        line += f"continued turns {yes_no(can.continues)}, stop strings found and cut here"
        if left := self._refused & {"seed", "temperature"}:
            line += f", no {' and no '.join(sorted(left))}"
        if can.thinks:
            line += f"; the model thinks, with {self._thinking_tokens:,} tokens for it (engine.thinking_tokens)"
        say(line)

    async def _first(self, prompt: str, sampling: Sampling) -> Completion:
        """Make a call of the probe. What the server rejects is not sent again."""
        while True:
            try:
                reply = await self._ask(self._messages(prompt, sampling), sampling)
            except (Rejected, Refused) as error:
                self._do_without(error)
                continue
            if reply.spent:
                raise UserError(
                    f"engine.thinking: {self.name} thinks before it answers, and {self._thinking_tokens:,} tokens "
                    "were not enough for a short answer; give engine.thinking=true with more "
                    "engine.thinking_tokens, or engine.thinking=false"
                )
            return reply.completion

    def _do_without(self, error: Rejected | Refused) -> None:
        """Give up the part of the protocol that ``error`` names. Raises ``error`` if it names none."""
        if isinstance(error, Rejected) and error.problem.status not in DOUBTFUL:
            raise error
        known = OPTIONAL.keys() - self._extra.keys()
        named = [
            field
            for name, field in OPTIONAL.items()
            if name in known and field not in self._refused and names(error, name)
        ]
        if self._guide != "none" and (names(error, "response_format") or names(error, "json_schema")):
            self._guide = {"json_schema": "json_object", "json_object": "none"}[self._guide]
        elif not named:
            check_extra(error, self._extra)
            raise error
        elif named[0] == "chat_template_kwargs" and not self._thinking:
            raise UserError(f"engine.thinking: {error}; the server cannot switch thinking off")
        else:
            self._refused.add(named[0])

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Answer ``prompt``, whose turns `ChatTokenizer` has separated.

        Raises:
            Refused: if the server refuses the prompt, for example because it does not fit the model's context.
            EngineError: if the servers fail, do not answer in time, or send a malformed answer.
            UserError: if the server rejects the request's settings, or the call selects an adapter.
        """
        if sampling.adapter:
            raise UserError(f"adapter {sampling.adapter}: {self.name} is a closed model; give a model of your own")
        first = await self._try(prompt, sampling)
        text = conform(first.text, sampling)
        if first.truncated or text is not None:
            return first if text is None or first.truncated else replace(first, text=text)
        again = [{"role": "assistant", "content": first.text}, {"role": "user", "content": instruct(sampling)}]
        second = await self._try(prompt, sampling, again)
        tokens = Usage(
            first.usage.prompt_tokens + second.usage.prompt_tokens,
            first.usage.completion_tokens + second.usage.completion_tokens,
        )
        text = None if second.truncated else conform(second.text, sampling)
        return replace(second, text=second.text if text is None else text, usage=tokens)

    async def _try(self, prompt: str, sampling: Sampling, again: Sequence[dict[str, str]] = ()) -> Completion:
        """Make a call, with further turns ``again``; where the server rejects its format, ask for it in words.

        A rejected request changes nothing for other calls.
        """
        try:
            return self._written(await self._ask([*self._messages(prompt, sampling), *again], sampling))
        except Rejected as error:
            rejected = error
        if rejected.problem.status in DOUBTFUL and sampling.guided and self._guide != "none":
            try:
                messages = [*self._messages(prompt, sampling, "none"), *again]
                return self._written(await self._ask(messages, sampling, "none"))
            except Rejected as error:
                rejected = error
        raise await self._doubts.refusal(rejected, sampling) from rejected

    def _written(self, reply: _Reply) -> Completion:
        """Return the completion of a reply. Raises Refused if thoughts left no tokens for the answer."""
        if reply.spent:
            raise refused(
                "unclosed thought",
                f"{self.name} thinks, and {self._thinking_tokens:,} tokens were not enough for its thoughts; give "
                "more engine.thinking_tokens with engine.thinking=true, or engine.thinking=false",
            )
        return reply.completion

    def _messages(self, prompt: str, sampling: Sampling, guide: str | None = None) -> list[dict[str, str]]:
        """Return the turns of a prompt."""
        user, _, lead = encodable(prompt).partition(TURN)
        wish = instruct(sampling) if (guide or self._guide) != "json_schema" else ""
        if lead.strip() and self._continues and not sampling.guided:
            return [{"role": "user", "content": user}, {"role": "assistant", "content": lead}]
        return [{"role": "user", "content": "\n\n".join(filter(None, (user, wish, lead.strip())))}]

    async def _ask(self, messages: list[dict[str, str]], sampling: Sampling, guide: str | None = None) -> _Reply:
        """Make a call; if thoughts took all tokens, and the model was not known to think, again with more."""
        known = self.abilities.thinks
        try:
            reply = await self._send(messages, sampling, guide or self._guide)
        except Rejected as error:
            if known or not _SPENT.search(str(error)):
                raise
            reply = None
        if reply and not reply.thinks:
            return reply
        self.abilities = replace(self.abilities, thinks=True)
        if reply and (known or not reply.spent):
            return reply
        return await self._send(messages, sampling, guide or self._guide)

    async def _send(self, messages: list[dict[str, str]], sampling: Sampling, guide: str) -> _Reply:
        messages = [message | {"content": defused(message["content"])} for message in messages]
        body = self._request(messages, sampling, guide)
        characters = sum(len(message["content"]) for message in messages)
        estimate = characters // 4 + sampling.max_tokens
        answer = await self._replicas.post("/chat/completions", body, estimate)
        reply = self._reply(answer, sampling, messages[-1]["content"], guide)
        used = reply.completion.usage
        if self._counts and SHORTEST_CONTEXT <= used.prompt_tokens < characters / MOST_CHARACTERS:
            raise PromptTooLong(
                f"{answer.url}: the server has cut the prompt of {characters:,} characters, to "
                f"{used.prompt_tokens:,} tokens; give it a longer context"
            )
        self._replicas.used(estimate, used.prompt_tokens + used.completion_tokens)
        self._calls += 1
        self._uncounted += not used.prompt_tokens
        self._used = Usage(
            self._used.prompt_tokens + used.prompt_tokens, self._used.completion_tokens + used.completion_tokens
        )
        return reply

    def _request(self, messages: list[dict[str, str]], sampling: Sampling, guide: str) -> dict[str, Any]:
        """Return the body of a call, without the fields that the server rejects."""
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        continued = messages[-1]["role"] == "assistant"
        fields = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.top_p != 1 else None,
            "seed": sampling.seed,
            "logprobs": sampling.logprobs > 0 or None,
            "response_format": _response_format(sampling, guide),
            # Extensions of vLLM and SGLang; other servers continue a last message of the assistant by themselves.
            "continue_final_message": continued or None,
            "chat_template_kwargs": None if self._thinking is None else {"enable_thinking": self._thinking},
        }
        fields = {name: value for name, value in fields.items() if name not in self._refused}
        if fields.get("logprobs"):
            fields["top_logprobs"] = min(sampling.logprobs, 20)
        if fields.get("continue_final_message"):
            fields["add_generation_prompt"] = False
        fields |= {limit: self._limit(sampling), "model": self.name, "messages": messages}
        sent = {name: value for name, value in fields.items() if value is not None} | self._extra
        if template := fields.get("chat_template_kwargs"):
            sent["chat_template_kwargs"] = template | self._extra.get("chat_template_kwargs", {})
        return sent

    def _limit(self, sampling: Sampling) -> int:
        """Return the number of tokens to write, with those of thoughts."""
        return sampling.max_tokens + (self._thinking_tokens if self.abilities.thinks else 0)

    def _reply(self, answer: Answer, sampling: Sampling, last: str, guide: str) -> _Reply:
        read = answer.read(_Answer)
        choice, told = read.choices[0], read.usage or UsageMessage()
        message, raw = choice.message, choice.message.text
        usage = told.usage()
        limited = ended_by_limit(answer.url, choice.finish_reason, usage.completion_tokens, self._limit(sampling))
        if not raw and message.refusal:
            raise refused("refused by the model", f"{answer.url}: {message.refusal[:300]}")
        if not raw and choice.finish_reason in ("tool_calls", "function_call"):
            raise refused("no text", f"{answer.url}: the model calls a tool in place of an answer")
        after = raw if sampling.thoughts else after_thoughts(raw)
        thinks = message.thinks or told.thoughts > 0 or (not sampling.thoughts and has_thoughts(raw))
        spent = after is None or (limited and not raw)
        text = (after or "").lstrip("\n")
        if guide == "json_schema" and _is_wrapped(sampling):
            text = _unwrapped(text)
        text = _without_lead(text, last)
        cut, stop = first_stop(text, sampling.stop)
        tokens = choice.logprobs.content or [] if choice.logprobs else []
        begin = raw.rfind(text) if text else len(raw)
        end = begin + cut + len(stop or "")
        ids, logprobs = _alternatives(tokens, begin, end) if begin >= 0 else ((), ())
        completion = Completion(
            text=text[:cut],
            token_ids=ids,
            usage=usage,
            stop=stop,
            truncated=spent or (limited and stop is None),
            logprobs=logprobs,
        )
        return _Reply(completion, thinks or spent, spent)

    async def aclose(self) -> None:
        """Close the connections, and print the calls, tokens and cost."""
        await self._replicas.aclose()
        read, written = self._used.prompt_tokens, self._used.completion_tokens
        tokens = f"{read:,} tokens read, {written:,} written"
        tokens += f", {self._uncounted:,} calls without the server's counts" if self._uncounted else ""
        dollars = (read * self._prices[0] + written * self._prices[1]) / 1e6
        cost = f", ${dollars:,.2f}" if any(self._prices) else ""
        say(f"{self.name}: {self._calls:,} calls, {tokens}{cost}")


def _response_format(sampling: Sampling, guide: str) -> dict[str, Any] | None:
    """Return the request for JSON: of a schema, or of any object."""
    if sampling.regex or not sampling.guided or guide == "none":
        return None
    if guide == "json_object":
        return None if _is_wrapped(sampling) else {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": _schema(sampling)}}


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
    tokens: Sequence[Token], begin: int, end: int
) -> tuple[tuple[int, ...], tuple[tuple[TokenLogprob, ...], ...]]:
    """Return ids and log-probabilities of the tokens from ``begin`` to ``end``; the ids are numbers of our own."""
    ids: dict[str, int] = {}
    chosen, logprobs, at = [], [], 0
    for token in tokens:
        if at + len(token.token) > begin and at < end:
            best = [(each.token, value) for each, value in token.alternatives()]
            logprobs.append(tuple(TokenLogprob(ids.setdefault(text, len(ids)), text, p) for text, p in best))
            chosen.append(ids[token.token])
        at += len(token.token)
    return tuple(chosen), tuple(logprobs)
