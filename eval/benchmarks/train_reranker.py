"""Train a small cross-encoder for the last row of the retrievers benchmark, which needs no download.

The model is all-MiniLM-L6-v2 (from its package) with a scoring head. It is trained on the questions of the training
files, on gold passages and other passages found by BM25. A reranker from the Hub that was trained on the half a
million questions of MS MARCO is better.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from rag_train.eval.benchmarks.common import exit_on_user_error
from rag_train.eval.metrics.retrieval import gold_passages
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.encoder import EMBEDDED, model_path
from rag_train.retrieval.index.text import indexed_text

FILES = ("hotpotqa/train_100.json", "2wikimultihopqa/train_sample.json", "musique/train_100.jsonl")
NEGATIVES = 4
"""Passages per question that are not gold, drawn from BM25's first 30."""


def pairs(data: Path, seed: int) -> list[dict[str, object]]:
    """Return the training pairs: ``query``, ``passage``, and ``label`` (1.0 for gold passages, 0.0 for others)."""
    corpus = list(read_corpus(data / "corpus.jsonl"))
    by_id = {passage.id: passage for passage in corpus}
    questions = [question for file in FILES for question in load_questions(data / file)]
    found = BM25Index.build(corpus).search([question.question for question in questions], 30)
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for question, gold, passages in zip(questions, gold_passages(questions, corpus), found, strict=True):
        right = {id for ids in gold.found for id in ids}
        others = [passage for passage in passages if passage.id not in right]
        chosen = [(by_id[ids[0]], 1.0) for ids in gold.found]
        chosen += [(passage, 0.0) for passage in rng.sample(others, min(NEGATIVES, len(others)))]
        rows.extend({"query": question.question, "passage": indexed_text(p), "label": y} for p, y in chosen)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of corpus.jsonl and the question files")
    parser.add_argument("--output", type=Path, default=Path("runs/reranker"), help="directory of the model")
    parser.add_argument("--epochs", type=float, default=1, help="passes over the pairs")
    parser.add_argument("--lr", type=float, default=1e-4, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the negatives and the training")
    options = parser.parse_args()
    with exit_on_user_error():
        rows = pairs(options.data, options.seed)

    import torch
    from datasets import Dataset
    from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    model = CrossEncoder(model_path(EMBEDDED), num_labels=1)
    model.max_seq_length = 128
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(options.output / "checkpoints"),
        num_train_epochs=options.epochs,
        learning_rate=options.lr,
        per_device_train_batch_size=32,
        warmup_steps=0.1,
        bf16=True,
        use_cpu=not torch.accelerator.is_available(),
        seed=options.seed,
        save_strategy="no",
        logging_steps=20,
        report_to="none",
    )
    trainer = CrossEncoderTrainer(
        model, arguments, train_dataset=Dataset.from_list(rows), loss=BinaryCrossEntropyLoss(model)
    )
    trainer.train()
    model.save_pretrained(str(options.output))
    print(f"{options.output}: cross-encoder trained on {len(rows):,} pairs")


if __name__ == "__main__":
    main()
