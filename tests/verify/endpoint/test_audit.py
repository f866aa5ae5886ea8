"""Audits of a stock llama.cpp with one option changed, over HTTP: what differs is named, what does not is not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from assay.gguf import open_file
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.models import load
from assay.text import Tokenizer
from assay.verify.endpoint.audit_findings import AuditOptions, AuditResult
from assay.verify.endpoint.audit_report import data, headline, page, text
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.client import Client
from tests.synthetic import make_kquant
from tests.verify.endpoint.batching_server import with_words
from tests.verify.endpoint.stock_server import stock

pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("audit")
    made = {"claim": make_kquant(folder / "claim.gguf"), "other": make_kquant(folder / "other.gguf", seed=8)}
    made["gemma"] = with_words("gemma3, no window", folder / "gemma.gguf")
    for mix in ("Q4_0", "Q2_K"):
        made[mix] = folder / f"{mix}.gguf"
        quantize(open_file(made["claim"]), made[mix], mix_by_name(mix), allow_requantize=True)
    return made


def audited(claim: Path, served: Path, options: dict[str, Any], proxy: dict[str, Any], **more: Any) -> AuditResult:
    model = load(open_file(claim))
    with stock(served, options, proxy) as url:
        client = Client(url, Tokenizer.from_gguf(model.file))
        return audit_endpoint(model, client, AuditOptions(threads=1, **more), progress=lambda _: None)


Q8, Q4 = ({f"cache_type_{side}": kind for side in "kv"} for kind in ("q8_0", "q4_0"))
HONEST: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "as claimed": ("claim", {}, {}),
    "Q4_0, and claimed so": ("Q4_0", {}, {}),  # prefix reuse and batch-dependent kernels
    "prefix cache off": ("Q4_0", {"cache_prompt": False}, {}),
    "cache in q8_0": ("claim", Q8, {}),
    "three digits": ("claim", {}, {"digits": 3}),
}
DISHONEST: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    "rope base": ("claim", {"rope_freq_base": 1e4}, {}, "model", "base of 10000"),
    "rope scale": ("claim", {"rope_freq_scale": 0.5}, {}, "model", "multiplied by 0.5"),
    "Q2_K": ("Q2_K", {}, {}, "model", "Q2_K"),
    "hidden system message": ("claim", {}, {"system": "Speak like a pirate."}, "prompt", "more tokens"),
    "known system message": ("claim", {}, {"system": "Be concise."}, "prompt", "'Be concise.'"),
    "temperature": ("claim", {}, {"temperature": 0.8}, "sampling", "temperature 0 was asked for"),
    "repetition penalty": ("claim", {}, {"repeat_penalty": 1.3}, "sampling", "penalty on tokens that came before"),
    "frequency penalty": ("claim", {}, {"frequency_penalty": 1.0}, "sampling", "penalty on tokens that came before"),
    "top-k 1": ("claim", {}, {"top_k": 1}, "sampling", "top-k 1"),
    "min-p": ("claim", {}, {"min_p": 0.2}, "sampling", "min-p 0.2"),
    "one seed": ("claim", {}, {"seed": 5}, "sampling", "seeds"),
}


@pytest.mark.parametrize("case", HONEST)
def test_honest_servers_are_as_claimed(files: dict[str, Path], case: str) -> None:
    claim, options, proxy = HONEST[case]
    found = audited(files[claim], files[claim], options, proxy)
    assert found.verdict == "as claimed" and len(found.excluded) >= 4, text(found)
    assert found.requests <= 40


def test_a_penalty_that_a_request_can_switch_off_is_a_note(files: dict[str, Path]) -> None:
    """llama-cpp-python's server has one by default."""
    found = audited(files["claim"], files["claim"], {"sampling.penalty_repeat": 1.3}, {})
    assert found.verdict != "differs" and any("by default" in n and "a penalty" in n for n in found.notes), text(found)


@pytest.mark.parametrize("case", DISHONEST)
def test_what_differs_is_named(files: dict[str, Path], case: str) -> None:
    served, options, proxy, area, words = DISHONEST[case]
    found = audited(files["claim"], files[served], options, proxy)
    assert found.verdict == "differs", text(found)
    assert found.findings[0].area == area and words in found.findings[0].words, text(found)
    wrong = [f for f in found.findings if f.confidence > 0.9 and words not in f.words]
    assert not wrong, text(found)


def test_another_model_of_the_same_vocabulary(files: dict[str, Path]) -> None:
    """It is detected, and named if it is on the list."""
    unknown = audited(files["claim"], files["other"], {}, {}, chat=False, draws=False)
    assert unknown.verdict == "differs" and all(f.confidence <= 0.9 for f in unknown.findings), text(unknown)
    listed = audited(files["claim"], files["other"], {}, {}, others=(files["other"],))
    assert "other.gguf" in listed.findings[0].words and listed.findings[0].confidence > 0.9, text(listed)


def test_gemma_has_a_finite_noise(files: dict[str, Path]) -> None:
    """Its activations overflow float16. A random model may be too flat to exclude much, which is said."""
    found = audited(files["gemma"], files["gemma"], {}, {}, tokens=60, chat=False, draws=False)
    assert found.verdict in ("as claimed", "inconclusive") and math.isfinite(found.noise), text(found)


def test_tokens_alone_are_never_overrated(files: dict[str, Path]) -> None:
    """Without log-probabilities a healthy server is not called different; what was not excluded is said."""
    found = audited(files["claim"], files["claim"], {}, {"drop": ["logprobs"]}, tokens=200)
    assert found.verdict in ("as claimed", "inconclusive") and found.reading.top == 0, text(found)
    other = audited(files["claim"], files["Q2_K"], {}, {"drop": ["logprobs"]}, tokens=600)
    assert other.verdict == "differs", text(other)


def test_reports(files: dict[str, Path]) -> None:
    found = audited(files["claim"], files["claim"], {}, {}, chat=False, draws=False)
    assert headline(found).startswith("as claimed") and str(found.requests) in text(found)
    assert data(found)["verdict"] == "as claimed" and len(data(found)["log10_odds_by_block"]) == found.blocks
    assert "<svg" in page(found, "http://x", "claim.gguf")
