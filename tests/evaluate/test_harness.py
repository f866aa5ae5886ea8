"""assay as a model of lm-evaluation-harness: the harness itself asks it and transformers the same questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.convert.conversion import convert
from assay.evaluate.choices import answer_all, read
from assay.runtime.opening import OpenOptions, open_model
from tests.convert import folders

pytest.importorskip("lm_eval")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # the harness's own wrapper of transformers needs it
pytestmark = pytest.mark.slow

ITEMS = 200
WORDS = ["hello", "world", "12", "hell", "word", "or", "low", "who", "he", "lord"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("harness")
    source = folders.make(folder / "qwen2", "qwen2")
    convert(source, folder / "model.gguf", "F32")
    return source, folder / "model.gguf"


def questions(path: Path) -> Path:
    rng = np.random.default_rng(3)

    def text(n: int) -> str:
        return " ".join(rng.choice(WORDS, n))

    rows = [
        {"query": text(6), "choices": [text(rng.integers(1, 4)) for _ in range(4)], "gold": int(rng.integers(4))}
        for _ in range(ITEMS)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def asked(lm: Any, file: Path) -> list[dict[str, Any]]:
    """The harness's own record of a multiple-choice task from a local file."""
    import lm_eval

    task = {
        "task": "local", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{query}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }  # fmt: skip
    found = lm_eval.simple_evaluate(model=lm, tasks=[task], log_samples=True, bootstrap_iters=0)
    return sorted(found["samples"]["local"], key=lambda sample: int(sample["doc_id"]))


def test_choices_are_transformers(model: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    from lm_eval.models.huggingface import HFLM

    from assay.evaluate.harness import AssayLM

    file = questions(tmp_path / "questions.jsonl")
    net = transformers.AutoModelForCausalLM.from_pretrained(model[0], dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model[0])
    theirs = asked(HFLM(pretrained=net, tokenizer=tokenizer, device="cpu"), file)
    lm = AssayLM(pretrained=str(model[1]), precision="exact")
    ours = asked(lm, file)
    assert len(ours) == len(theirs) == ITEMS
    for a, b in zip(ours, theirs, strict=True):
        mine, other = (np.array([float(r[0]) for r in s["filtered_resps"]]) for s in (a, b))
        np.testing.assert_allclose(mine, other, atol=1e-3)
        first, second = np.sort(other)[::-1][:2]
        assert np.argmax(mine) == np.argmax(other) or first - second < 1e-3
    opened = open_model(model[1], OpenOptions(precision="exact", cache_size=0))
    result = answer_all(opened.engine(), opened.tokenizer, read(file))
    acc = np.mean([sample["acc"] for sample in ours])
    assert result.acc.value == acc
    assert result.acc_norm.value == np.mean([sample["acc_norm"] for sample in ours])


def test_rolling_and_generation(model: tuple[Path, Path]) -> None:
    from lm_eval.api.instance import Instance

    from assay.evaluate.harness import AssayLM

    lm = AssayLM(pretrained=str(model[1]), precision="exact", ctx_size=32)

    def ask(kind: str, *arguments: Any) -> Any:
        return getattr(lm, kind)([Instance(kind, {}, arguments, 0)])[0]

    text = "hello world low who he lord 12 " * 8  # longer than the context: it is scored window by window
    assert ask("loglikelihood_rolling", text) < ask("loglikelihood_rolling", text[:40]) < 0
    whole = ask("generate_until", "hello world", {"until": [], "max_gen_toks": 8})
    stop = whole[len(whole) // 2 :][:1]
    assert ask("generate_until", "hello world", {"until": [stop], "max_gen_toks": 8}) == whole[: whole.index(stop)]
