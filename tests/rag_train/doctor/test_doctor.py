"""`rag-train doctor`: what is here, in lines that come whatever is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import call
from support.paths import ROOT

from rag_train import errors
from rag_train.doctor import examine as examination
from rag_train.doctor.capacity import largest
from rag_train.doctor.examine import Finding
from rag_train.doctor.machine import Accelerator, Space, memory, processor
from rag_train.doctor.packages import Package, Part, Seen, import_problem, installed
from rag_train.model_presets import PRESETS

GIB = 2**30
H100 = Accelerator("H100", 80 * GIB, True)


@pytest.mark.slow
def test_first_finding_needs_no_heavy_imports():
    code = (
        "import sys\nfrom rag_train.doctor.examine import examine\nprint(next(examine()).text)\n"
        "sys.exit(bool({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "Python" in done.stdout


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ImportError('undefined symbol: _ZN3c10')", "ImportError: undefined symbol: _ZN3c10"),
        ("import os; os._exit(3)", "importing it ends with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "importing it ends the process (signal 9)"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("", None),
    ],
)
def test_broken_package_is_told_in_a_line(
    code: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "fragile.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert import_problem("fragile") == problem


def test_package_is_found_under_either_name():
    part = Part(("absent", "pydantic"), "", "engine", "records")
    assert installed(part).name == "pydantic" and installed(part).works
    assert installed(Part(("absent",), "", "", "")) == Package("absent", None, "", "")


def test_processor_is_read_from_cpuinfo(tmp_path: Path):
    (tmp_path / "cpuinfo").write_text("model name\t: Xeon\nflags\t\t: fpu avx2 avx512f amx_bf16 avx512_bf16\n")
    found = processor(tmp_path / "cpuinfo")
    assert found.name == "Xeon" and found.instructions == ["AVX2", "AVX-512", "bf16", "AMX"]
    assert processor(tmp_path / "gone").instructions == []


@pytest.mark.parametrize(("limit", "bounded"), [("1000", True), ("max", False)])
def test_memory_is_at_most_the_containers(limit: str, bounded: bool, tmp_path: Path):
    (tmp_path / "memory.max").write_text(limit)
    assert (memory(tmp_path / "memory.max") == Space(1000, 1000)) == bounded


@pytest.mark.slow
@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 8))
def test_more_memory_is_enough_for_as_large_models(one: int, other: int, devices: int):
    less, more = (largest(size * GIB, devices) for size in sorted((one, other)))

    def size(name: str | None) -> int:
        return PRESETS[name].parameters() if name else 0

    assert all(size(less[use]) <= size(more[use]) for use in less)
    assert size(less["train"]) <= size(less["lora"])


@pytest.mark.parametrize("off", [False, True])
def test_an_environment_in_which_engines_start_slowly_is_told(off: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", off)
    assert ("unset it" in next(examination.examine()).text) is off


def test_machines_that_people_have():
    assert largest(80 * GIB, 8)["train"] == "qwen2.5-32b"
    assert largest(80 * GIB, 1) == {"serve": "qwen2.5-32b", "lora": "qwen2.5-32b", "train": "qwen3-4b"}
    assert largest(2 * GIB, 1)["train"] is None


def findings(
    monkeypatch: pytest.MonkeyPatch, seen: Seen, *parts: Part, job: str | None = None
) -> dict[str, Finding]:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(examination, "accelerators", lambda: seen)
    monkeypatch.setattr(examination, "PARTS", parts)
    return {finding.name: finding for finding in examination.examine(job)}


def values(monkeypatch: pytest.MonkeyPatch, devices: list[Accelerator], *parts: Part) -> dict[str, object]:
    found = findings(monkeypatch, Seen(devices, "13.0", True), *parts)
    return {name: each.value for name, each in found.items()}


def texts(monkeypatch: pytest.MonkeyPatch, seen: Seen, *parts: Part, job: str | None = None) -> dict[str, str]:
    return {name: each.text for name, each in findings(monkeypatch, seen, *parts, job=job).items()}


def test_examination_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    parts = [Part(("absent-engine",), "", "engine", ""), Part(("absent-kernel",), "", "gpu", "")]
    seen = values(monkeypatch, [], *parts)
    assert seen["install"] == [f'pip install -e "{ROOT}[cpu]"'] and seen["accelerators"] == []
    seen = values(monkeypatch, [H100] * 8, *parts, Part(("absent-searcher",), "", "retrieval", ""))
    assert seen["install"] == [f'pip install -e "{ROOT}[{extra}]"' for extra in ("gpu", "retrieval")]
    assert seen["enough_for"] == largest(80 * GIB, 8)


def test_what_to_install_is_the_source_or_the_released_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert errors.install_command("cpu") == 'pip install -e ".[cpu]"' and errors.install_command().endswith('"."')
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "rag_train/errors.py"))
    assert errors.install_command("cpu") == 'pip install "rag-train[cpu]"'


def test_a_package_that_cannot_be_imported_is_not_called_missing():
    assert str(errors.not_installed(ModuleNotFoundError(name="faiss"))).startswith("faiss is not installed; ")
    told = str(errors.not_installed(ImportError("undefined symbol: _ZN5faiss")))
    assert told.startswith("a package does not fit the others (undefined symbol: _ZN5faiss); run pip install")


def test_examination_goes_on_past_what_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(examination, "import_problem", lambda module: "ImportError: no")
    monkeypatch.setattr(examination.machine, "processor", lambda: 1 / 0)
    seen = values(monkeypatch, [], Part(("pydantic",), "pydantic", "", "records"))
    assert seen["processor"] == {"problem": "ZeroDivisionError: division by zero"}
    assert seen["install"] == ["pip install --force-reinstall pydantic"]
    assert "enough_for" not in seen


def driver(version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a driver of this version, with one GPU, on the path."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, {version}'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize(
    ("version", "seen", "told"),
    [
        ("535.104.05", Seen([], "13.0", True), "older than 580, which PyTorch for CUDA 13.0 needs; update the"),
        ("580.65.06", Seen([], None), "but PyTorch is a build without CUDA; pip install"),
        (
            "580.65.06",
            Seen([], "13.0", warning="no permission"),
            "of which PyTorch sees 0 (no permission); look at",
        ),
    ],
)
def test_gpus_that_pytorch_cannot_use_are_told_with_the_remedy(
    version: str, seen: Seen, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    driver(version, tmp_path, monkeypatch)
    found = texts(monkeypatch, seen, job="train")
    assert told in found["driver"] and found["install"] != "nothing is missing"
    assert found["job"].startswith("train cannot run: NVIDIA")


def test_a_driver_that_is_new_enough_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver("580.65.06", tmp_path, monkeypatch)
    found = texts(monkeypatch, Seen([H100], "13.0", True), job="train")
    assert found["driver"] == "NVIDIA 580.65.06, 1 GPU (NVIDIA H100 80GB HBM3), new enough for CUDA 13.0"
    assert found["job"] == "train can run"


def test_packages_that_own_one_module_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, digest in (("thing-cpu", "a"), ("thing-gpu", "b"), ("other", "b"), ("other-old", "a")):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        module = name.partition("-")[0]
        files = {f"{module}/__init__.py": digest, "shared/__init__.py": "c", "build_backend.py": name}
        (folder / "RECORD").write_text("".join(f"{file},sha256={of},9\n" for file, of in files.items()))
    monkeypatch.syspath_prepend(tmp_path)
    found = texts(monkeypatch, Seen([], None), job="dense")
    assert "thing-cpu and thing-gpu both own thing/__init__.py (1 files)" in found["clashes"]
    assert "pip uninstall -y thing-cpu && pip install --force-reinstall --no-deps thing-gpu" in found["install"]
    assert "pip uninstall -y other other-old && pip install other other-old" in found["install"]
    assert "build_backend" not in found["clashes"]
    assert found["job"].startswith("dense cannot run")


def test_faiss_that_does_not_search_on_the_gpu_is_broken(monkeypatch: pytest.MonkeyPatch):
    part = Part(("faiss-cpu",), "faiss", "engine", "dense indexes")
    pytest.importorskip("faiss", reason="faiss is not installed; install the extra cpu")
    assert "dense cannot run" not in texts(monkeypatch, Seen([], None), part, job="dense")["job"]
    found = texts(monkeypatch, Seen([H100], "13.0", True), part, job="dense")
    assert "searches on the CPU" in found["faiss-cpu"] and "dense cannot run" in found["job"]


def test_an_engine_without_its_worker_is_broken(monkeypatch: pytest.MonkeyPatch):
    part = Part(("pydantic",), "pydantic", "engine", "", {"pydantic": "pydantic.no_worker"})
    assert "broken: ModuleNotFoundError" in texts(monkeypatch, Seen([], None), part)["pydantic"]


@pytest.mark.parametrize(("devices", "told"), [([], "PyTorch sees none"), ([H100], "can run")])
def test_vllm_for_gpus_serves_on_gpus_only(devices: list[Accelerator], told: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(examination, "installed", lambda part: Package(part.distributions[0], "1", "", ""))
    found = texts(monkeypatch, Seen(devices, "13.0"), Part(("vllm",), "", "engine", ""), job="serve")
    assert told in found["job"]


def test_a_disk_without_room_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(examination.machine, "disk", lambda: Space(100 * GIB, GIB))
    assert "too little for a model and its checkpoints; free 50.0 GiB" in texts(monkeypatch, Seen([], None))["disk"]


@pytest.mark.parametrize(("reasons", "code"), [([], 0), (["vllm: not installed"], 1)])
def test_the_exit_code_says_whether_a_job_can_run(reasons: list[str], code: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(examination, "examine", lambda job: iter([Finding("job", reasons, "")]))
    assert call("doctor", "serve") == code


def test_command_prints_lines_or_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    found = [Finding("memory", {"total": 1}, "1 GiB"), Finding("install", ["a", "b"], "a\nb")]
    monkeypatch.setattr(examination, "examine", lambda job: iter(found))
    assert call("doctor") == 0
    assert capsys.readouterr().out == f"{'memory':22} 1 GiB\n{'install':22} a\n{'':22} b\n"
    assert call("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"memory": {"total": 1}, "install": ["a", "b"]}
