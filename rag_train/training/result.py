"""The result of a training run, as ``training.json`` in its output directory holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

METRICS = "metrics.jsonl"
"""Name of the file with the metrics of each logged step, which a running training appends to."""
RESULT = "training.json"
"""Name of the result file; it is written last, so its existence marks a finished run."""


@dataclass(frozen=True)
class TrainResult:
    """The contents of ``training.json``."""

    output_dir: str
    steps: int
    """Optimizer steps."""
    losses: list[dict[str, float]]
    """Step, loss and learning rate at each logged step; in stage dpo also the mean reward margin and accuracy,
    in stage rl the mean reward and its standard deviation."""
    tokens_seen: int
    """Tokens processed by the model, without padding."""
    trained_share: float | None
    """Share of the data's tokens that contribute to the loss; None in stage rl, whose data are questions."""
    data: dict[str, int]
    """Counts of a `DataReport`."""
    seconds: float
    """Time spent in training steps by the process that finished the run."""
    resumed_from: int
    """Step of the checkpoint from which that process continued; 0 if the run was not interrupted."""
    data_sha256: str
    model_sha256: str | None
    """SHA-256 of the starting model's weights; None for a Hub name."""
    code_version: str
    machine: dict[str, str]
    validation: list[dict[str, float]] = field(default_factory=list)
    """Step, loss and accuracy of each evaluation on ``eval_data``."""
    trained_parameters: int | None = None
    """Number of parameters that were trained; None in files of earlier versions."""
    model_commit: str | None = None
    """Commit of a starting model from the Hub; None for a directory."""
    kept_step: int | None = None
    """Step whose weights were kept; None in files of earlier versions, which kept those of the last step."""
    survived: float | None = None
    """Share of the update of the weights that is left in the number format in which they were saved; None if they
    were saved in the format in which they were trained."""
    already_finished: bool = False
    """Whether the run had finished before, so that nothing was done."""

    @property
    def kept(self) -> list[dict[str, float]]:
        """The evaluation of the weights that were kept; empty without ``eval_data``."""
        return [entry for entry in self.validation if entry["step"] == self.kept_step]


def summary_line(result: TrainResult) -> str:
    """Return the line that the command line prints at the end of a run."""
    if result.already_finished:
        return f"{result.output_dir}: finished already ({result.steps} steps); nothing to do"
    loss = f", loss {result.losses[-1]['loss']:.4f}" if result.losses else ""
    for kept in result.kept:
        loss += f", on eval_data {kept['eval_loss']:.4f} with accuracy {kept['eval_accuracy']:.1%}"
        loss += f" at step {result.kept_step}, which is kept"
    if result.survived is not None:
        loss += f", the saved weights keep {result.survived:.1%} of the update"
    if result.trained_share is None:
        reward = f", reward {result.losses[-1]['reward']:.4f}" if result.losses else ""
        return (
            f"{result.output_dir}: {result.steps} steps on {result.data['examples']} questions{reward}, "
            f"{result.seconds:.0f} s"
        )
    dropped = sum(result.data.get(name, 0) for name in ("too_long", "untrained", "unwritable"))
    return (
        f"{result.output_dir}: {result.steps} steps on {result.data['examples']} examples{loss}, "
        f"{result.trained_share:.0%} of the tokens trained, {result.data['shortened']} shortened, "
        f"{dropped} dropped, {result.seconds:.0f} s"
    )
