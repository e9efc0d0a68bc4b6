"""An engine over transformers' ``generate``, for small models and for what vLLM does not expose."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    LogitsProcessor,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from rag_train.errors import PromptTooLong, UserError, not_installed
from rag_train.llm.base import Abilities, Completion, EngineError, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import (
    ADD_TOKENS,
    beginning,
    check_adapter,
    check_checkpoint,
    encode,
    load_tokenizer,
    model_class,
    unwritable,
)
from rag_train.llm.control import encoded
from rag_train.llm.log import starting
from rag_train.precision import exact_attention, fast_dtype

if TYPE_CHECKING:
    from xgrammar import GrammarCompiler

MAX_BATCH = 64
"""Most calls in a batch."""


@dataclass(frozen=True)
class Inspection:
    """Entropy and attention of a model over a prompt and a text that follows it, T tokens in total."""

    tokens: tuple[str, ...]
    """The T tokens, in the vocabulary's spelling."""
    start: int
    """Index of the text's first token. A token that spans the end of the prompt belongs to the text."""
    spans: tuple[tuple[int, int], ...]
    """Start and end (exclusive) of each token, as character offsets into ``prompt + text``."""
    entropy: tuple[float, ...]
    """Entropy in nats of the model's prediction for each token from ``start`` to the last."""
    attention: torch.Tensor
    """Attention of each token (row) to each token (column): float32 of shape (T, T) on the CPU, from the last
    layer, averaged over the heads."""


class SeededNoise(LogitsProcessor):
    """Gumbel noise from a generator for each row, with which the most probable token is a sample (Gumbel-max).

    A row's sample depends on its seed only, not on the other rows of its batch.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device):
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        waits = [torch.empty_like(scores[0]).exponential_(generator=each) for each in self._generators]
        return scores - torch.stack(waits).log()


class Recorder(LogitsProcessor):
    """Records the log-probabilities of the written tokens and of the most probable ones at each step.

    It runs before other processors. The logits of all steps are not kept: those of 64 rows of 256 tokens, with a
    vocabulary of 150,000, are 10 GB.
    """

    def __init__(self, temperature: float, alternatives: int):
        self._temperature = temperature or 1.0
        self._alternatives = alternatives
        self._now: torch.Tensor | None = None
        self._steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        self._record(input_ids)
        self._now = torch.log_softmax(scores.float() / self._temperature, -1)
        return scores

    def rows(self, sequences: torch.Tensor) -> list[list[list[tuple[int, float]]]]:
        """Return, for each row and step, tokens with log-probabilities, the written token last."""
        self._record(sequences)
        if not self._steps:
            return [[] for _ in sequences]
        ids, values = (torch.stack(parts, 1).tolist() for parts in zip(*self._steps, strict=True))
        return [
            [list(zip(*step, strict=True)) for step in zip(*row, strict=True)]
            for row in zip(ids, values, strict=True)
        ]

    def _record(self, written: torch.Tensor) -> None:
        """Record the step whose token is the last of ``written``."""
        if self._now is None:
            return
        ids = torch.cat([self._now.topk(self._alternatives).indices, written[:, -1:]], 1)
        self._steps.append((ids, self._now.gather(1, ids)))


class TransformersEngine:
    """An ``LLM`` over ``generate``. Waiting calls with the same sampling parameters, except for seeds, run as one
    padded batch. Log-probabilities are those at the sampling temperature.

    With an encoder-decoder model, the encoder reads the prompt, including the special tokens that the tokenizer
    adds, and the decoder writes the text. It does not continue a reply that the prompt has begun.
    """

    def __init__(self, model, tokenizer: PreTrainedTokenizerBase, name: str):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        decoder = not model.config.is_encoder_decoder
        self.abilities = Abilities(continues=decoder, attention=decoder)
        self._ends = _ends(model, tokenizer)
        pad = tokenizer.pad_token_id
        self._pad = pad if pad is not None else min(self._ends, default=0)  # any token: it is masked
        self._context = _context(model.config, tokenizer)
        self._adapters: dict[str, str] = {}
        self._lock = threading.Lock()  # generating and inspecting both set the model's adapter and attention
        self._waiting: list[tuple[list[int], Sampling, asyncio.Future[Completion]]] = []
        self._worker: asyncio.Task[None] | None = None

    @classmethod
    def start(
        cls, model: str, *, dtype: str = "auto", tokenizer: str | None = None, thinking: bool | None = None
    ) -> TransformersEngine:
        """Load ``model`` (a local directory or a hub name), with the library's output in the log file.

        ``dtype`` is the number format of the weights; ``auto`` for the format in which they were saved, but float32
        on processors without instructions for bf16.
        ``tokenizer`` is a directory or hub name, None for the model's own; for ``thinking`` see `load_tokenizer`.

        Raises UserError if the directory is not a valid checkpoint or the model cannot be loaded.
        """
        check_checkpoint(model)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with starting("transformers", model):
            config = AutoConfig.from_pretrained(model)
            options = {"dtype": fast_dtype(dtype), "device_map": device} | exact_attention(config)
            loaded = model_class(config).from_pretrained(model, **options)
        return cls(loaded, load_tokenizer(tokenizer or model, thinking), Path(model).name)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``; see `LLM.complete`. Raises UserError if the adapter does not fit the model."""
        config = self.model.config
        if config.is_encoder_decoder:
            [(ids, _)] = encoded(self.tokenizer, [prompt], whole=True)
        else:
            ids = encode(self.tokenizer, prompt)
        needed = max(len(ids), sampling.max_tokens) if config.is_encoder_decoder else len(ids) + sampling.max_tokens
        if needed > self._context:
            raise ValueError(
                f"prompt of {len(ids)} tokens and {sampling.max_tokens} to write exceed "
                f"the context of {self._context}"
            )
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, sampling, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let every caller that is ready add its call to the batch
            self._waiting = [call for call in self._waiting if not call[2].cancelled()]
            if not self._waiting:
                return
            kind = _batch_key(self._waiting[0][1])
            alike = [call for call in self._waiting if _batch_key(call[1]) == kind][:MAX_BATCH]
            self._waiting = [call for call in self._waiting if call not in alike]
            try:
                prompts, samplings = [ids for ids, _, _ in alike], [sampling for _, sampling, _ in alike]
                completions = await asyncio.to_thread(self._generate, prompts, samplings)
            except Exception as error:
                if isinstance(error, RuntimeError):  # for example, out of memory
                    error = EngineError(f"{self.name}: {error}")
                for _, _, future in alike:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), completion in zip(alike, completions, strict=True):
                if not future.done():
                    future.set_result(completion)

    async def inspect(self, prompt: str, text: str, adapter: str | None = None) -> Inspection:
        """Compute entropy and attention for each token of ``text`` after ``prompt``, with ``adapter`` if given.

        Raises:
            PromptTooLong: if prompt and text do not fit the model's context.
            ValueError: if ``prompt`` is empty.
            UserError: if the model is an encoder-decoder.
        """
        if self.model.config.is_encoder_decoder:
            raise UserError(f"model {self.name}: cannot inspect an encoder-decoder; use a decoder-only model")
        return await asyncio.to_thread(self._inspect, prompt, text, adapter)

    def _inspect(self, prompt: str, text: str, adapter: str | None) -> Inspection:
        [(ids, spans)] = encoded(self.tokenizer, [prompt + text])
        first = beginning(self.tokenizer, ids)
        ids, spans = [*first, *ids], [(0, 0)] * len(first) + spans
        start = next((i for i, (_, end) in enumerate(spans) if end > len(prompt)), len(ids))
        if start == 0:
            raise ValueError("the prompt is empty: the text's first token has no context to be predicted from")
        if len(ids) > self._context:
            raise PromptTooLong(f"prompt and text of {len(ids)} tokens exceed the context of {self._context}")
        with self._lock, torch.inference_mode():
            self._use(adapter)
            usual = self.model.config._attn_implementation
            self.model.set_attn_implementation("eager")  # other implementations do not return attention weights
            try:
                tokens = torch.tensor([ids], device=self.model.device)
                output = self.model(tokens, output_attentions=True, use_cache=False)
            finally:
                self.model.set_attn_implementation(usual)
            logprobs = torch.log_softmax(output.logits[0, start - 1 : -1].float(), -1)
            attention = output.attentions[-1][0].float().mean(0).cpu()
        entropy = torch.special.entr(logprobs.exp()).sum(-1)
        return Inspection(
            tokens=tuple(self.tokenizer.convert_ids_to_tokens(ids)),
            start=start,
            spans=tuple(spans),
            entropy=tuple(entropy.tolist()),
            attention=attention,
        )

    def _use(self, adapter: str | None) -> None:
        """Activate ``adapter``, whose files are read at the first use; None activates the base model.

        Raises UserError if the adapter cannot be read or does not fit the model.
        """
        if adapter is None:
            if self._adapters:
                self.model.disable_adapters()
            return
        if adapter not in self._adapters:
            check_adapter(adapter)
            name = f"adapter{len(self._adapters)}"
            try:
                self.model.load_adapter(adapter, adapter_name=name)
            except Exception as error:
                raise UserError(
                    f"adapter {adapter}: does not fit {self.name} ({type(error).__name__}: {error})"
                ) from error
            self._adapters[adapter] = name
        self.model.enable_adapters()
        self.model.set_adapter(self._adapters[adapter])

    def _generate(self, prompts: list[list[int]], samplings: list[Sampling]) -> list[Completion]:
        # A thread begins with the first GPU, also in a process whose model is on another.
        with self._lock, torch.cuda.device_of(next(self.model.parameters())):
            self._use(samplings[0].adapter)
            return self._generate_with(prompts, samplings[0], [each.seed for each in samplings])

    @torch.inference_mode()
    def _generate_with(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int | None]
    ) -> list[Completion]:
        # A decoder continues at the right end; an encoder may number positions from the left.
        side = "right" if self.model.config.is_encoder_decoder else "left"
        batch = _padded(prompts, self._pad, side, self.model.device)
        seeded = [seed for seed in seeds if seed is not None] if sampling.temperature else []
        greedy = sampling.temperature == 0 or bool(seeded)
        recorder = Recorder(sampling.temperature, sampling.logprobs)
        recorders = [recorder] if sampling.logprobs else []
        output = self.model.generate(
            **batch,
            max_new_tokens=sampling.max_tokens,
            do_sample=not greedy,
            temperature=None if greedy else sampling.temperature,
            top_p=None if greedy else sampling.top_p,
            top_k=None,
            repetition_penalty=1.0,  # instead of the model's own default, as in the other engines
            stop_strings=list(sampling.stop) or None,
            tokenizer=self.tokenizer,
            logits_processor=[*recorders, *self._guide(sampling), *self._noise(sampling, seeded)],
            pad_token_id=self._pad,
        )
        # The output begins with the prompt; that of an encoder-decoder begins with its start token.
        begin = 1 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        rows = zip(prompts, output[:, begin:].tolist(), recorder.rows(output), strict=True)
        return [self._completion(len(prompt), ids, sampling, recorded) for prompt, ids, recorded in rows]

    def _completion(
        self, prompt_tokens: int, ids: list[int], sampling: Sampling, recorded: list[list[tuple[int, float]]]
    ) -> Completion:
        end = next((i for i, token in enumerate(ids, 1) if token in self._ends), None)
        ids = ids[:end]
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        found = [(text.index(stop), stop) for stop in sampling.stop if stop in text]
        cut, stop = min(found, default=(len(text), None))
        while stop is not None and len(ids) > 1 and stop in self.tokenizer.decode(ids[:-1]):
            ids = ids[:-1]  # padding: this row stopped before the other rows of the batch
        return Completion(
            text=text[:cut],
            token_ids=tuple(ids),
            usage=Usage(prompt_tokens, len(ids)),
            stop=stop,
            truncated=end is None and stop is None,
            logprobs=tuple(self._alternatives(step) for step, _ in zip(recorded, ids, strict=False)),
        )

    def _alternatives(self, step: list[tuple[int, float]]) -> tuple[TokenLogprob, ...]:
        """Return the tokens of a step, the written one once."""
        return tuple(
            TokenLogprob(token, str(self.tokenizer.decode([token])), value) for token, value in dict(step).items()
        )

    def _noise(self, sampling: Sampling, seeds: Sequence[int]) -> list[LogitsProcessor]:
        """Return the logits processors that sample with a seed for each row; none without seeds."""
        if not seeds:
            return []
        cut = [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
        return [TemperatureLogitsWarper(sampling.temperature), *cut, SeededNoise(seeds, self.model.device)]

    def _guide(self, sampling: Sampling) -> list[LogitsProcessor]:
        """Return a new xgrammar logits processor, or none if ``sampling`` does not ask for guided decoding.

        Raises UserError for JSON if the tokenizer has no braces.
        """
        if not sampling.guided:
            return []
        try:
            import xgrammar
        except ImportError as error:  # it comes with vLLM
            raise not_installed(error, "cpu") from error

        if sampling.json_schema:
            if lost := unwritable(self.tokenizer, "{}"):
                problem = f"its tokenizer cannot write {lost}, which JSON needs"
                raise UserError(f"model {self.name}: {problem}; {ADD_TOKENS}")
            grammar = self._grammars.compile_json_schema(sampling.json_schema)
        else:
            # xgrammar warns about an escaped space.
            choices = (re.escape(choice).replace(r"\ ", " ") for choice in sampling.choice or ())
            grammar = self._grammars.compile_regex(sampling.regex or "|".join(choices))
        return [xgrammar.contrib.hf.LogitsProcessor(grammar)]

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        """The compiler of guided decoding's grammars, which keeps what it compiled."""
        import xgrammar

        size = self.model.config.get_text_config().vocab_size
        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=size)
        if info.vocab_type == xgrammar.VocabType.RAW:  # SentencePiece without bytes, such as T5's
            words = [""] * size
            for token, i in self.tokenizer.get_vocab().items():
                if i < size and token not in self.tokenizer.all_special_tokens:
                    words[i] = token.replace("▁", " ")
            ends = [self.tokenizer.eos_token_id]
            info = xgrammar.TokenizerInfo(words, info.vocab_type, vocab_size=size, stop_token_ids=ends)
        return xgrammar.GrammarCompiler(info)

    async def aclose(self) -> None:
        if self._worker is not None:
            await self._worker


def _batch_key(sampling: Sampling) -> tuple[bool, Sampling]:
    """Return what the calls of a batch have in common: everything but the seed, which all of them have or none."""
    return sampling.seed is None, replace(sampling, seed=None)


def _padded(prompts: list[list[int]], pad: int, side: str, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the prompts as a batch, padded at one side. It takes no padding token: many base models have none."""
    rows = [torch.tensor(ids, dtype=torch.long, device=device) for ids in prompts]
    masks = [torch.ones_like(row) for row in rows]
    return {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=pad, padding_side=side),
        "attention_mask": pad_sequence(masks, batch_first=True, padding_side=side),
    }


def _ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the tokens that end a text: the tokenizer's, and those of the model's turns in chat."""
    own = model.generation_config.eos_token_id if model.generation_config else None
    ends = [*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id]
    return {token for token in ends if token is not None}


def _context(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the model's maximum context in tokens; infinity for relative positions without a stated limit.

    T5's configs state the length that it was trained with, which its relative positions are not bound to.
    """
    if hasattr(config, "relative_attention_num_buckets"):
        return float("inf")
    for name in ("max_position_embeddings", "n_positions"):
        if limit := getattr(config.get_text_config(decoder=True), name, None):
            return limit
    # A tokenizer without a limit reports 1e30.
    return tokenizer.model_max_length if tokenizer.model_max_length < 1e9 else float("inf")
