"""Servers with one fault each, asked over HTTP: the fault is named from log-probabilities alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.text import Tokenizer
from assay.verify.endpoint.blackbox import diagnose_endpoint
from assay.verify.endpoint.client import Client
from tests.synthetic import make_kquant
from tests.verify.endpoint.faulty_server import serving


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
        "bos-double", "tmpl-genprompt", "special-as-text", "tmpl-wrong-family", "kv-refeed", "kv-stale-request",
        "rope-type", "rope-linear", "samp-topp-order", "samp-topp-boundary", "samp-rng",
    ],
)  # fmt: skip
def test_endpoint_more(path: Path, model: Model, fault: str) -> None:
    _ask(path, model, (fault,))


def test_a_text_cut_otherwise(path: Path, model: Model) -> None:
    """By the sums of scores, and the server shows no ids: log-probabilities and the count of tokens tell."""
    tokenizer = Tokenizer.from_gguf(model.file)
    with serving(path, "spm-merge-order", "no-echo") as url:
        found = diagnose_endpoint(model, Client(url, tokenizer))
    assert found.first_wrong == "inp_tokens" and found.causes[0].fault == "spm-merge-order", found.to_dict()


def _ask(path: Path, model: Model, faults: tuple[str, ...]) -> None:
    tokenizer = Tokenizer.from_gguf(model.file)
    with serving(path, *faults) as url:
        found = diagnose_endpoint(model, Client(url, tokenizer))
    expected = [f for f in faults if f != "no-echo"]
    if expected:
        assert found.causes and found.causes[0].fault == expected[0], found.to_dict()
    else:
        assert found.verdict == "healthy", found.to_dict()
