"""Encoder-decoders of T5's shape: what each side reads, the loss, what is refused, and serving what was trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import call
from support.paths import MODEL, ROOT
from support.questions import compounds
from support.tokenizers import unigram
from support.training import kill_at, recipe_in, sft_record, write
from tokenizers import AddedToken
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from rag_train.data_synth.methods import hanrag as synthesis
from rag_train.errors import UserError
from rag_train.formats import hanrag
from rag_train.jobs.files import read_records
from rag_train.llm.base import Completion, Sampling
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.control import encoded
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.retrieval.open import build_index
from rag_train.schema import SFTRecord, Trajectory
from rag_train.training.data import APART, sft_rows
from rag_train.training.encoder_decoder import batch
from rag_train.training.epoch import epoch
from rag_train.training.load import fitted, load_data
from rag_train.training.masking import IGNORE
from rag_train.training.memory import Sharding, architecture, estimate
from rag_train.training.plan import plan
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.run import train
from rag_train.worlds.mini.world import World

SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"}


def records_of(world: World, count: int) -> list[SFTRecord]:
    """Return the Revelator's examples of ``count`` questions of each kind."""
    corpus = {passage.id: passage for passage in world.corpus()}
    other = next(iter(corpus.values()))
    made: list[SFTRecord] = []
    for question in [*world.questions("train")[:count], *compounds(world, "train", count)]:
        found = {s.subquery: [*(corpus[i] for i in s.passage_ids), other] for s in question.decomposition}
        made += synthesis.gold_records(question, found, instructions=False)
    return [record for record in made if record.task in synthesis.REVELATOR]


def save_model(folder: Path, tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> None:
    """Write a random model like FLAN-T5's files: with an output layer of its own, and unused rows."""
    torch.manual_seed(0)
    given = SIZES | {"vocab_size": len(tokenizer) + 28, "dropout_rate": 0.0} | sizes
    config = T5Config(**given, decoder_start_token_id=0, n_positions=512, tie_word_embeddings=False)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"]) / given["d_model"] ** 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    del written["scale_decoder_outputs"]
    (folder / "config.json").write_text(json.dumps(written | {"tie_word_embeddings": False}))
    tokenizer.save_pretrained(folder)


def add_signs(tokenizer: PreTrainedTokenizerFast) -> None:
    """As docs/site/howto/train.md does."""
    tokenizer.add_tokens([AddedToken(sign, normalized=False) for sign in "\n{}"])


@pytest.fixture(scope="module")
def flan(tmp_path_factory: pytest.TempPathFactory, mini_world: World) -> Path:
    """A directory with a random model (model/), the same with line breaks and braces in its tokenizer (signs/), and
    the Revelator's records of the mini world (sft.jsonl)."""
    folder = tmp_path_factory.mktemp("flan")
    records = records_of(mini_world, 6)
    write(folder / "sft.jsonl", records)
    tokenizer = unigram([record.prompt + record.completion for record in records], 300)
    save_model(folder / "model", tokenizer)
    add_signs(tokenizer)
    save_model(folder / "signs", tokenizer)
    torch.set_num_threads(1)
    return folder


def recipe_for(flan: Path, output: Path, **keys: Any) -> TrainRecipe:
    return recipe_in(flan, output, **({"model": str(flan / "signs"), "precision": "fp32"} | keys))


def complete(engine: TransformersEngine, prompts: Sequence[str], **keys: Any) -> list[Completion]:
    async def go() -> list[Completion]:
        return await asyncio.gather(*(engine.complete(prompt, Sampling(**keys)) for prompt in prompts))

    return asyncio.run(go())


# -- rows ------------------------------------------------------------------------------------------------


def test_the_encoder_reads_the_prompt_as_at_inference_and_the_decoder_learns_the_rest(flan: Path):
    tokenizer = load_tokenizer(str(flan / "signs"))
    rows, report = sft_rows(flan / "sft.jsonl", tokenizer, max_tokens=500, chat=False, apart=True)
    records = read_records(flan / "sft.jsonl", SFTRecord)
    assert rows.column_names == list(APART) and len(rows) == len(records)
    for record, row in zip(records, rows, strict=True):
        lead, target = (segment.text for segment in record.segments)
        [(read, _)] = encoded(tokenizer, [record.prompt + lead], whole=True)
        assert row["input_ids"] == read and read[-1] == tokenizer.eos_token_id
        assert row["labels"] == row["target_ids"] and row["target_ids"][-1] == tokenizer.eos_token_id
        written = tokenizer.decode(row["target_ids"], skip_special_tokens=True)
        assert written.replace(" ", "") == target.replace(" ", "")
    assert report.tokens == sum(len(row["input_ids"]) + len(row["target_ids"]) for row in rows)
    assert report.trained_tokens == sum(len(row["labels"]) for row in rows)


def test_passages_within_the_target_are_read_by_the_decoder_and_masked(tmp_path: Path):
    tokenizer = unigram()
    path = write(tmp_path / "sft.jsonl", [sft_record(3)])
    [row], _ = sft_rows(path, tokenizer, max_tokens=900, chat=False, apart=True)
    read = batch(0, [row])
    text = sft_record(3).completion
    assert tokenizer.decode(row["target_ids"], skip_special_tokens=True) == text
    masked = [token for token, label in zip(row["target_ids"], row["labels"], strict=True) if label == IGNORE]
    assert "Context: T: Born in 3.\nIntermediate answer:" in tokenizer.decode(masked)
    assert read["decoder_input_ids"][0, : len(row["target_ids"])].tolist() == [0, *row["target_ids"][:-1]]
    assert {tensor.shape[1] % 64 for tensor in read.values()} == {0}


def test_a_training_on_targets_that_go_on_after_passages_says_that_the_engine_does_not_serve_them(
    flan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    record = read_records(flan / "sft.jsonl", SFTRecord)[0]
    for times, said in ((1, False), (2, True)):
        again = {"segments": record.segments * times, "completion": record.completion * times}
        data = write(tmp_path / f"{times}.jsonl", [record.model_copy(update=again)])
        load_data(recipe_for(flan, tmp_path / "out", data=data))
        assert ("does not serve such a model as it was trained" in capsys.readouterr().err) == said


def test_an_example_that_does_not_fit_loses_whole_segments_of_the_target(tmp_path: Path):
    path, tokenizer = write(tmp_path / "sft.jsonl", [sft_record(3, passages=9)]), unigram()
    [row], report = sft_rows(path, tokenizer, max_tokens=250, chat=False, apart=True)
    assert report.shortened == 1 and tokenizer.eos_token_id not in row["target_ids"]
    assert tokenizer.decode(row["target_ids"]).endswith("in Wikipedia.\n")


def test_a_tokenizer_without_braces_or_line_breaks_is_refused_where_they_are_trained(flan: Path, tmp_path: Path):
    tokenizer = load_tokenizer(str(flan / "model"))
    with pytest.raises(UserError, match=r"line \d+: the model's tokenizer cannot write .* \(\{ \}\); add these"):
        sft_rows(flan / "sft.jsonl", tokenizer, max_tokens=500, chat=False, apart=True)
    with pytest.raises(UserError, match=r"line 1: .* \(line breaks\)"):
        path = write(tmp_path / "steps.jsonl", [sft_record(3)])
        sft_rows(path, tokenizer, max_tokens=500, chat=False, apart=True)


def test_an_example_with_a_character_that_the_tokenizer_lacks_is_left_out_and_counted(flan: Path, tmp_path: Path):
    records = [r for r in read_records(flan / "sft.jsonl", SFTRecord) if r.task == "hanrag_refine"][:2]
    lead, target = records[0].segments
    strange = target.model_copy(update={"text": " 漢?\n"})
    records[0] = records[0].model_copy(update={"segments": [lead, strange], "completion": lead.text + strange.text})
    path = write(tmp_path / "sft.jsonl", records)
    rows, report = sft_rows(path, load_tokenizer(str(flan / "model")), max_tokens=500, chat=False, apart=True)
    assert (len(rows), report.unwritable) == (1, 1)


# -- loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", ["token", "example"])
def test_the_loss_of_a_step_is_that_of_its_examples_alone(flan: Path, tmp_path: Path, weight: Any):
    data = write(tmp_path / "sft.jsonl", read_records(flan / "sft.jsonl", SFTRecord)[:4])
    keys = {"steps": 1, "epochs": None, "batch_size": 2, "gradient_accumulation": 2}
    result = train(recipe_for(flan, tmp_path / "out", data=data, sft=SFTRecipe(weight=weight), **keys))
    model = AutoModelForSeq2SeqLM.from_pretrained(flan / "signs").eval()
    rows, _ = sft_rows(data, load_tokenizer(str(flan / "signs")), max_tokens=500, chat=False, apart=True)
    sums, counts = [], []
    for row in rows:
        decoder = torch.tensor([[0, *row["target_ids"][:-1]]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row["input_ids"]]), decoder_input_ids=decoder).logits[0]
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(row["target_ids"])[:, None])[:, 0]
        counts.append(len(logprobs))
        sums.append(-logprobs.sum().item())
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    wanted = sum(means) / 4 if weight == "example" else sum(sums) / sum(counts)
    assert result.losses[0]["loss"] == pytest.approx(wanted, rel=1e-5)
    assert result.tokens_seen == result.data["tokens"]


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stage": "dpo", "dpo": DPORecipe()}, "stage=dpo: model .*signs is an encoder-decoder, which only"),
        ({"sft": SFTRecipe(pack_tokens=400), "batch_size": 1}, "sft.pack_tokens=400: .*; set sft.pack_tokens=null"),
        ({"model": "model"}, r"cannot write what is trained here \(\{ \}\)"),
    ],
)
def test_what_an_encoder_decoder_cannot_do_is_refused_before_weights_are_loaded(
    flan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], message: str
):
    monkeypatch.setattr("transformers.AutoModelForSeq2SeqLM.from_pretrained", lambda *a, **k: pytest.fail("loaded"))
    if "model" in keys:
        keys = {"model": str(flan / keys["model"])}
    with pytest.raises(UserError, match=message):
        train(recipe_for(flan, tmp_path / "out", **{"data": flan / "sft.jsonl"} | keys))
    assert not (tmp_path / "out").exists()


def test_vllm_refuses_an_encoder_decoder(flan: Path):
    with pytest.raises(UserError, match="an encoder-decoder, which vLLM does not serve; use"):
        VLLMEngine.start(str(flan / "model"))


# -- plan ------------------------------------------------------------------------------------------------


def test_adapters_are_on_all_linear_layers_unless_the_recipe_names_others(flan: Path, tmp_path: Path):
    found = fitted(recipe_for(flan, tmp_path / "out", lora=LoraRecipe()))
    assert found.lora and found.lora.target_modules == ["k", "o", "q", "v", "wi_0", "wi_1", "wo"]
    named = recipe_for(flan, tmp_path / "out", lora=LoraRecipe(target_modules=["q"]))
    assert fitted(named) == named


def test_the_plan_counts_both_sides_and_says_that_it_knows_no_time(flan: Path, tmp_path: Path, capsys):
    recipe = recipe_for(flan, tmp_path / "out", batch_size=3)
    tokenizer = load_tokenizer(str(flan / "signs"))
    rows, report = sft_rows(flan / "sft.jsonl", tokenizer, max_tokens=500, chat=False, apart=True)
    read, written = (max(len(row[name]) for row in rows) for name in ("input_ids", "target_ids"))
    [largest] = epoch(recipe, rows).largest
    assert largest[:2] == (3 * (-(-read // 64) + -(-written // 64)) * 64, 3 * -(-written // 64) * 64)
    planned = plan(recipe, rows, report)
    assert planned.seconds is None and "encoder-decoder is not known" in " ".join(planned._assumptions())


@pytest.mark.parametrize(("read", "written"), [(256, 64), (64, 192)])
def test_the_estimate_is_near_what_a_forward_pass_keeps(flan: Path, tmp_path: Path, read: int, written: int):
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 320, "num_layers": 4, "num_heads": 4, "dropout_rate": 0.1}
    save_model(tmp_path / "model", load_tokenizer(str(flan / "model")), **sizes)
    model, kept = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").train(), {}
    weights = {weight.data_ptr() for weight in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = {"input_ids": torch.ones(2, read).long(), "decoder_input_ids": torch.ones(2, written).long()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**ids, attention_mask=torch.ones(2, read).long(), use_cache=False)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    pairs = 2 * (read * read + written * written + read * written)
    recipe = recipe_for(flan, tmp_path / "out", model=str(tmp_path / "model"))
    found = estimate(recipe, architecture(recipe.model), Sharding(), 2 * (read + written), 2 * written, pairs)
    assert 0.8 < found.activations / measured < 1.5


# -- serving ---------------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_a_forward_pass(flan: Path):
    engine = TransformersEngine.start(str(flan / "signs"), dtype="float32")
    prompts = ["Question: who was it?\nType:", "Query: x\nType:"]
    for prompt, found in zip(prompts, complete(engine, prompts, max_tokens=8, logprobs=1), strict=True):
        [(ids, _)] = encoded(engine.tokenizer, [prompt], whole=True)
        decoder = torch.tensor([[0, *found.token_ids[:-1]]])
        with torch.no_grad():
            logits = engine.model(input_ids=torch.tensor([ids]), decoder_input_ids=decoder).logits[0]
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
        assert [token.logprob for token in found.chosen] == pytest.approx(wanted.tolist(), abs=1e-4)
        assert found.usage.prompt_tokens == len(ids)
        assert found.text == engine.tokenizer.decode(found.token_ids, skip_special_tokens=True)
    with pytest.raises(UserError, match="cannot inspect an encoder-decoder"):
        asyncio.run(engine.inspect("a", "b"))


def test_choices_and_json_are_decoded_under_guidance(flan: Path):
    pytest.importorskip("xgrammar", reason="xgrammar is not installed; install the extra cpu")
    engine = TransformersEngine.start(str(flan / "signs"), dtype="float32")
    assert not engine.abilities.continues and not engine.abilities.attention
    sampling = {"temperature": 2.0, "seed": 3, "max_tokens": 200}
    route, relevant = hanrag.ROUTE.sampling(), hanrag.RELEVANT.sampling()
    for task, choices in ((hanrag.ROUTE, route.choice), (hanrag.RELEVANT, relevant.choice)):
        for found in complete(engine, ["a", "b b b", "c"], stop=("\n",), choice=choices, **sampling):
            assert not found.truncated and task.parse(found.text)
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
    [found] = complete(engine, ["x"], json_schema=schema, **sampling)
    assert isinstance(json.loads(found.text)["a"], bool)


def test_json_is_refused_with_a_tokenizer_that_has_no_braces(flan: Path):
    pytest.importorskip("xgrammar", reason="xgrammar is not installed; install the extra cpu")
    engine = TransformersEngine.start(str(flan / "model"), dtype="float32")
    with pytest.raises(UserError, match=r"model model: its tokenizer cannot write \{\}, which JSON needs"):
        complete(engine, ["x"], json_schema="{}")


def test_prompts_longer_than_those_of_the_models_training_are_read(flan: Path):
    engine = TransformersEngine.start(str(flan / "signs"), dtype="float32")
    assert engine.model.config.n_positions == 512
    [found] = complete(engine, ["who is it? " * 400], max_tokens=4)
    assert found.usage.prompt_tokens > 512


# -- whole runs ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights_and_its_output_layer_stays_its_own(
    flan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keys = {"steps": 6, "epochs": None, "save_steps": 2}
    whole = train(recipe_for(flan, tmp_path / "whole", **keys))
    recipe = recipe_for(flan, tmp_path / "killed", **keys)
    kill_at(monkeypatch, recipe, 3)
    resumed = train(recipe)
    assert resumed.resumed_from == 2 and resumed.losses == whole.losses
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(after["lm_head.weight"], after["shared.weight"])
    card = (tmp_path / "whole" / "README.md").read_text()
    assert (
        "pipeline_tag: text2text-generation" in card
        and "AutoModelForSeq2SeqLM" in card
        and "vllm serve" not in card
    )


@pytest.mark.slow
def test_merged_adapters_are_the_model_that_was_trained(flan: Path, tmp_path: Path):
    keys = {"steps": 4, "epochs": None, "gradient_checkpointing": True}
    keys |= {"eval_data": write(tmp_path / "held_out.jsonl", [_other(flan)]), "eval_steps": 2}
    adapted = train(recipe_for(flan, tmp_path / "adapter", lora=LoraRecipe(r=4), **keys))
    merged = train(recipe_for(flan, tmp_path / "merged", lora=LoraRecipe(r=4, merge=True), **keys))
    assert adapted.losses == merged.losses and merged.survived == pytest.approx(1)
    assert adapted.trained_parameters == sum(
        tensor.numel() for tensor in load_file(tmp_path / "adapter" / "adapter_model.safetensors").values()
    )
    engines = {name: TransformersEngine.start(str(flan / "signs"), dtype="float32") for name in ("base", "adapter")}
    engines["merged"] = TransformersEngine.start(str(tmp_path / "merged"), dtype="float32")
    adapters = {"base": None, "adapter": str(tmp_path / "adapter"), "merged": None}
    found = {
        name: complete(engine, ["Query: x\nType:"], max_tokens=6, logprobs=1, adapter=adapters[name])[0]
        for name, engine in engines.items()
    }
    chosen = {name: [token.logprob for token in each.chosen] for name, each in found.items()}
    assert chosen["adapter"] == pytest.approx(chosen["merged"], abs=1e-3)
    assert chosen["adapter"] != pytest.approx(chosen["base"], abs=1e-3)


def _other(flan: Path) -> SFTRecord:
    """Return an example whose question is not in the data."""
    record = read_records(flan / "sft.jsonl", SFTRecord)[0]
    return record.model_copy(update={"id": "other", "prompt": "Other? " + record.prompt})


@pytest.mark.slow
def test_a_revelator_is_trained_by_the_shipped_recipe_and_served_by_eval(
    flan: Path, tmp_path: Path, mini_world: World, capsys: pytest.CaptureFixture[str]
):
    output, asked = tmp_path / "revelator", [*mini_world.questions("train")[:3], *compounds(mini_world, "train", 3)]
    recipe = [ROOT / "recipes/hanrag_sft.yaml", f"model={flan / 'signs'}", f"data={flan / 'sft.jsonl'}"]
    recipe += [f"output_dir={output}", "sft.pack_tokens=null", "global_batch=16", "batch_size=16", "lora=null"]
    assert call("train", *recipe, "epochs=null", "steps=240", "lr=1e-2", "precision=fp32") == 0
    losses = json.loads((output / "training.json").read_text())["losses"]
    assert losses[-1]["loss"] < 0.2

    for name, records in (("q", asked), ("corpus", mini_world.corpus())):
        write(tmp_path / f"{name}.jsonl", records)
    build_index("bm25", tmp_path / "corpus.jsonl", tmp_path / "index", lambda done: None)
    capsys.readouterr()
    command = ["eval", "--model", MODEL, "--role", f"revelator={output}", "--index", tmp_path / "index"]
    command += ["--questions", tmp_path / "q.jsonl", "--strategy", "hanrag", "--engine", "transformers"]
    assert call(*command, "--no-instructions", "--output", tmp_path / "m", "--json") == 0
    [cell] = json.loads(capsys.readouterr().out)
    assert cell["summary"]["errors"] == 0
    answers = read_records(tmp_path / f"m/cells/{cell['id']}.jsonl", Trajectory)
    routes = [answer.notes["route"] for answer in answers]
    wanted = ["compound question" if question.type == "compound" else "complex question" for question in asked]
    assert routes == wanted and not any(answer.unparsed for answer in answers)
