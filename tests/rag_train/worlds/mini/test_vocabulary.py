"""Words added to a mini model's vocabulary."""

from pathlib import Path

from rag_train.worlds.mini.world import World, WorldConfig


def test_new_words_leave_the_model_unchanged(tmp_path: Path):
    import torch
    from transformers import Qwen2ForCausalLM

    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.worlds.mini.pretrain import PretrainConfig, build_model
    from rag_train.worlds.mini.text import build_tokenizer
    from rag_train.worlds.mini.vocabulary import with_words

    world = World(WorldConfig(films=20, people=20, cities=5, countries=3))
    before = build_tokenizer(world)
    model = build_model(PretrainConfig(hidden_size=32, layers=1, heads=2, intermediate_size=64), before)
    model.save_pretrained(tmp_path / "base")
    before.save_pretrained(tmp_path / "base")
    name = world.entities["film"][0]
    assert with_words(tmp_path / "base", [f'Relevant: true\n["{name}"]'], tmp_path / "more") >= 4
    assert with_words(tmp_path / "more", [], tmp_path / "same") == 0
    many = [" ".join("q" * length for length in range(1, 80))]  # more words than the model has room for
    weights = []
    for folder in ("first", "second"):
        assert with_words(tmp_path / "base", many, tmp_path / folder) > 64
        weights.append((tmp_path / folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]  # an interrupted training on them can continue
    load_tokenizer(str(tmp_path / "more")).save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_bytes((tmp_path / "more" / "config.json").read_bytes())
    for after in (load_tokenizer(str(tmp_path / "more")), load_tokenizer(str(tmp_path / "again"))):
        text = f"Question: Who directed {name}?\n<|endoftext|>"
        assert after(text)["input_ids"] == before(text)["input_ids"]
        assert (after.eos_token_id, after.pad_token_id) == (before.eos_token_id, before.pad_token_id)
        words = after(f"Relevant: true\n{name}")["input_ids"]
        assert len(words) == len(set(words)) == 6 and min(words[0], words[2]) >= len(before)
    ids = torch.tensor([before(f"Who directed {name}?")["input_ids"]])
    more = Qwen2ForCausalLM.from_pretrained(tmp_path / "more")
    known = len(before)
    torch.testing.assert_close(more(ids).logits[..., :known], model.eval()(ids).logits[..., :known])
