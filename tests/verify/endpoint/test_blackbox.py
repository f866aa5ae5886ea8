"""Servers with one fault each, asked over HTTP: the fault is named from log-probabilities alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.text import Tokenizer
from assay.verify.endpoint.audit_findings import AuditOptions
from assay.verify.endpoint.blackbox import diagnose_endpoint
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.nucleus_draws import Draw, _judge_draws, _nucleus
from tests.synthetic import make_kquant
from tests.verify.endpoint.faulty_server import serving

# Short texts: the second engine computes all of a text again for every token.
SHORT = AuditOptions(
    prompts=("The cat sat", "In May we", "A red door", "No rain fell", "Two and two", "He wrote it", "Sea salt is",
             "Old maps show", "She asked me", "Cold tea and", "Ten men ran", "My bread was", "Late that day"),
    threads=1, draws=False,  # top-p is tested after the audit
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(open_file(path))


@pytest.mark.parametrize("faults", [(), ("no-echo",), ("bos-missing",), ("tmpl-missing",), ("pos-reset-decode",)])
def test_endpoint(path: Path, model: Model, faults: tuple[str, ...]) -> None:
    _ask(path, model, faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "bos-double", "tmpl-genprompt", "special-as-text", "tmpl-wrong-family", "kv-refeed",
        "kv-stale-request", "rope-type", "rope-linear", "samp-topp-order", "samp-topp-boundary", "samp-rng",
    ],
)  # fmt: skip
def test_endpoint_more(path: Path, model: Model, fault: str) -> None:
    _ask(path, model, (fault,))


# After "The capital of France is Paris. The capital of", by SmolLM2's definition and by mistral.rs: " France", " the",
# " Italy", " Spain", " England". Below the second, the server's noise has another order.
DEFINED, SERVED = (-1.5130, -2.2586, -2.4569, -2.5002, -2.5811), (-1.5846, -2.1608, -2.5331, -2.5597, -2.4787)
ITALY, ENGLAND, RARE = 2, 4, 5


def judged(drawn: Sequence[int], served: Sequence[float]) -> list[str]:
    logits = np.array([*DEFINED, np.log(1 - np.exp(DEFINED).sum())])
    plan = Draw("", 0.3676, (0, 1, ITALY), (0.537, 0.255, 0.209), logits, len(drawn))
    own = _nucleus(plan, dict(enumerate(served)))
    return [cause.fault for cause in _judge_draws(plan, drawn, own)]


def test_a_server_ranks_near_tokens_as_it_likes() -> None:
    """By its own log-probabilities it keeps another third token. Those after its filter, of 0 nats, prove nothing."""
    drawn = [0] * 43 + [1] * 25 + [ENGLAND] * 21
    assert judged(drawn, SERVED) == []
    assert judged(drawn, DEFINED) == ["samp-topp-order"]
    assert judged([RARE if i == ENGLAND else i for i in drawn], SERVED) == ["samp-topp-order"]
    assert judged(drawn, (-9.0, -9.0, -9.0, -9.0, 0.0)) == ["samp-topp-order"]


def test_a_text_cut_otherwise(path: Path, model: Model) -> None:
    """By the sums of scores, and the server shows no ids: log-probabilities and the count of tokens tell."""
    tokenizer = Tokenizer.from_gguf(model.file)
    with serving(path, "spm-merge-order", "no-echo") as url:
        found = diagnose_endpoint(model, Client(url, tokenizer), options=SHORT)
    assert found.first_wrong == "inp_tokens" and found.causes[0].fault == "spm-merge-order", found.to_dict()


def _ask(path: Path, model: Model, faults: tuple[str, ...]) -> None:
    tokenizer = Tokenizer.from_gguf(model.file)
    with serving(path, *faults) as url:
        found = diagnose_endpoint(model, Client(url, tokenizer), options=SHORT)
    expected = [f for f in faults if f != "no-echo"]
    if expected:
        named = {fault for cause in found.causes[:1] for fault in (cause.fault, *cause.equivalent)}
        assert expected[0] in named, found.to_dict()
    else:
        assert found.verdict == "healthy", found.to_dict()
