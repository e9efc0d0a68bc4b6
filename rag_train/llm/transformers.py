"""Transformers behind the same protocol: for small models, and for what vLLM does not expose."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, set_seed

from rag_train.llm.base import Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import check_checkpoint, load_tokenizer


class TransformersEngine:
    """An ``LLM`` over ``generate``: calls that wait together and sample alike run as one left-padded batch."""

    def __init__(self, model, tokenizer: PreTrainedTokenizerBase, name: str, max_batch: int = 64):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self._max_batch = max_batch
        self._waiting: list[tuple[list[int], Sampling, asyncio.Future[Completion]]] = []
        self._worker: asyncio.Task[None] | None = None

    @classmethod
    def start(cls, model: str, *, dtype: str = "auto", max_batch: int = 64) -> TransformersEngine:
        """Load ``model`` (a local directory or a hub name). Raises UserError if the directory is no checkpoint."""
        check_checkpoint(model)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, device_map=device)
        return cls(loaded, load_tokenizer(model), Path(model).name, max_batch)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        limit = self.model.config.max_position_embeddings
        if len(ids) + sampling.max_tokens > limit:
            raise ValueError(
                f"prompt of {len(ids)} tokens and {sampling.max_tokens} to write exceed the context of {limit}"
            )
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, sampling, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let every caller that is ready join the batch
            sampling = self._waiting[0][1]
            alike = [call for call in self._waiting if call[1] == sampling][: self._max_batch]
            self._waiting = [call for call in self._waiting if call not in alike]
            try:
                completions = await asyncio.to_thread(self._generate, [ids for ids, _, _ in alike], sampling)
            except Exception as error:
                for _, _, future in alike:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), completion in zip(alike, completions, strict=True):
                if not future.done():
                    future.set_result(completion)

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Completion]:
        batch = self.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        batch = batch.to(self.model.device)
        if sampling.seed is not None:
            set_seed(sampling.seed)
        greedy = sampling.temperature == 0
        output = self.model.generate(
            **batch,
            max_new_tokens=sampling.max_tokens,
            do_sample=not greedy,
            temperature=None if greedy else sampling.temperature,
            top_p=None if greedy else sampling.top_p,
            top_k=None,
            stop_strings=list(sampling.stop) or None,
            tokenizer=self.tokenizer,
            logits_processor=self._guide(sampling),
            pad_token_id=self.tokenizer.pad_token_id,
            output_logits=sampling.logprobs > 0,
            return_dict_in_generate=True,
        )
        written = output.sequences[:, batch["input_ids"].shape[1] :].tolist()
        logprobs = [torch.log_softmax(step.float(), -1) for step in output.logits or ()]
        return [
            self._completion(len(prompt), ids, sampling, [step[i] for step in logprobs])
            for i, (prompt, ids) in enumerate(zip(prompts, written, strict=True))
        ]

    def _completion(
        self, prompt_tokens: int, ids: list[int], sampling: Sampling, logprobs: list[torch.Tensor]
    ) -> Completion:
        eos = self.tokenizer.eos_token_id
        ended = eos in ids
        ids = ids[: ids.index(eos) + 1] if ended else ids
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        found = [(text.index(stop), stop) for stop in sampling.stop if stop in text]
        cut, stop = min(found, default=(len(text), None))
        while stop is not None and len(ids) > 1 and stop in self.tokenizer.decode(ids[:-1]):
            ids = ids[:-1]  # a row that stopped before the others of its batch is filled up
        return Completion(
            text=text[:cut],
            token_ids=tuple(ids),
            usage=Usage(prompt_tokens, len(ids)),
            stop=stop,
            truncated=not ended and stop is None,
            logprobs=tuple(
                self._alternatives(step, token, sampling) for step, token in zip(logprobs, ids, strict=False)
            ),
        )

    def _alternatives(self, step: torch.Tensor, token: int, sampling: Sampling) -> tuple[TokenLogprob, ...]:
        best = step.topk(sampling.logprobs).indices.tolist()
        tokens = best if token in best else [*best, token]
        return tuple(TokenLogprob(t, str(self.tokenizer.decode([t])), step[t].item()) for t in tokens)

    def _guide(self, sampling: Sampling):
        """A fresh xgrammar processor for the format asked for, None where none is."""
        if not (sampling.json_schema or sampling.choice or sampling.regex):
            return None
        import xgrammar

        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.model.config.vocab_size)
        compiler = xgrammar.GrammarCompiler(info)
        if sampling.json_schema:
            grammar = compiler.compile_json_schema(sampling.json_schema)
        else:
            grammar = compiler.compile_regex(
                sampling.regex or "|".join(re.escape(c) for c in sampling.choice or ())
            )
        return [xgrammar.contrib.hf.LogitsProcessor(grammar)]

    async def aclose(self) -> None:
        if self._worker is not None:
            await self._worker
