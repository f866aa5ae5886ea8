"""llama.cpp as a witness for models other than Llama: values without a name are identified, and the check passes."""

from __future__ import annotations

import pytest

from assay.cli import main
from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.tracing import choose, take_trace
from tests.models import golden

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
from assay.verify.witness.llamacpp import LlamaCppEngine


@pytest.mark.parametrize(
    "name", ["qwen2", "qwen3", "gemma3", "glm4moe", "gpt-oss", "qwen2moe", "llama4", "stablelm-12b"]
)
def test_every_node_is_seen(name: str) -> None:
    """Products without a name are identified by their matrix, scaled queries by their source."""
    model = load(open_file(golden.path(name)))
    engine = LlamaCppEngine(model, threads=1)
    seen = {obs.name for obs in take_trace(engine, [5, 6, 7]).observations}
    engine.close()
    assert seen == set(choose(model.graph, None, engine.cannot_keep))


# What they have: experts in MXFP4, whose activations alone are rounded; a product called a norm; V made of the
# K product; norms with a gain per head; a gate of one row; GELU by a table; an encoder.
SLOW = ("llama4", "gemma4-moe", "stablelm-12b", "qwen2moe", "gemma4", "bert")


@pytest.mark.parametrize(
    "name", ["qwen2", "falcon", "gpt-oss", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_the_check_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["check", str(golden.path(name)), "--engine", "llamacpp", "--lengths", "1,4"]
    assert main(given) == 0, capsys.readouterr().out


def test_lengths_stay_within_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(golden.path("bert")), "--engine", "cpu"]) == 0
    assert "\npass  32 tokens, prefill" in capsys.readouterr().out
