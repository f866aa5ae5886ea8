"""`/v1/rerank` over cross-encoders and over a causal model that is asked, against formulas in NumPy."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from assay import engines
from assay.engines.contract import Chunk, pages_for
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import load
from assay.models.catalogue import metadata, tensor_shapes
from tests import tiny
from tests.models import others
from tests.serve.conftest import Server, start_server

PREFIX = "tokenizer.ggml."
QUERY = "w1 w7"
DOCUMENTS = ["w3 w4 w5", "w1 w7 w7", "w40", "w9 w8 w1 w2 w3 w5 w11"]


def cross_encoder(path: Path, *, hidden: bool, roberta: bool) -> Path:
    """A random encoder with a head of one or two matrices, and words w0, w1, … as its vocabulary."""
    row = others.CASES["bert"].row
    width, rng = row.sizes.n_embd, np.random.default_rng(3)
    shapes = dict(tensor_shapes(row)) | ({"token_types.weight": (1, width)} if roberta else {})
    shapes |= {"cls.output.weight": (1, width), "cls.output.bias": (1,)}
    if hidden:
        shapes |= {"cls.weight": (width, width), "cls.bias": (width,)}
    tensors = [Tensor(n, s, by_name("F32"), others._values(n, s, rng).astype(np.float32)) for n, s in shapes.items()]
    words = [f"▁w{i}" for i in range(row.sizes.n_vocab - 3)]
    special = ["<unk>", "<s>", "</s>"] if roberta else ["[UNK]", "[CLS]", "[SEP]"]
    keys: dict[str, Any] = metadata(row) | {
        "bert.pooling_type": 4,
        PREFIX + "tokens": special + words,
        PREFIX + "token_type": np.array([2, 3, 3] + [1] * len(words), np.int32),
        PREFIX + "bos_token_id": 1,
        PREFIX + "unknown_token_id": 0,
        PREFIX + "token_type_count": 2,
    }
    if roberta:
        keys |= {PREFIX + "model": "t5", PREFIX + "scores": np.zeros(len(words) + 3, np.float32)}
        keys |= {PREFIX + "eos_token_id": 2, PREFIX + "add_bos_token": True, PREFIX + "add_eos_token": True}
        keys |= {PREFIX + "add_space_prefix": True}
    else:
        keys |= {PREFIX + "model": "bert", PREFIX + "seperator_token_id": 2}
    write(path, keys, tensors)
    return path


def judge(path: Path) -> Path:
    """A causal model whose vocabulary has `yes` and `no` as one token each."""
    return tiny.make(path, n_ctx=1024, metadata=tiny.ranking())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rerank")
    return {
        "bert": cross_encoder(folder / "bert.gguf", hidden=True, roberta=False),
        "roberta": cross_encoder(folder / "roberta.gguf", hidden=False, roberta=True),
        "judge": judge(folder / "judge.gguf"),
        "tiny": tiny.make(folder / "tiny.gguf"),
    }


@pytest.fixture(scope="module")
def server(files: dict[str, Path]) -> Iterator[Server]:
    found = start_server(list(files.items()), memory=1 << 30)
    yield found
    assert found.end() == 0


def post(server: Server, path: str = "/v1/rerank", **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"query": QUERY, "documents": DOCUMENTS} | body, timeout=60)


def forward(path: Path, ids: list[int], *nodes: str) -> Any:
    engine = engines.create("reference", load(open_file(path)))
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    (output,) = engine.forward([Chunk(np.array(ids, np.int32), 0, pages, "last")], nodes)
    return output


def words(text: str) -> list[int]:
    return [3 + int(word[1:]) for word in text.split()]


def score(path: Path, ids: list[int], types: list[int]) -> float:
    """A cross-encoder's score in plain NumPy: BERT, then its head on the first token."""
    file = open_file(path)
    w = {name: file.decode(name).astype(np.float64) for name in file.tensors}
    heads, eps = file.get_int("bert.attention.head_count"), file.metadata["bert.attention.layer_norm_epsilon"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    x = w["token_embd.weight"][ids] + w["token_types.weight"][types] + w["position_embd.weight"][: len(ids)]
    x = norm(x, "token_embd_norm")
    for i in range(file.get_int("bert.block_count")):
        q, k, v = (linear(x, f"blk.{i}.attn_{part}").reshape(len(ids), heads, -1).transpose(1, 0, 2) for part in "qkv")
        s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(-1, keepdims=True))
        mixed = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(x + linear(mixed, f"blk.{i}.attn_output"), f"blk.{i}.attn_output_norm")
        up = linear(x, f"blk.{i}.ffn_up")
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))  # as GGUF engines define it
        x = norm(x + linear(gelu, f"blk.{i}.ffn_down"), f"blk.{i}.layer_output_norm")
    x = x[0]
    if "cls.weight" in w:
        x = np.tanh(linear(x, "cls"))
    return 1 / (1 + math.exp(-float(linear(x, "cls.output")[0])))


@pytest.mark.parametrize(("name", "between"), [("bert", [2]), ("roberta", [2, 2])])
def test_a_cross_encoder(server: Server, files: dict[str, Path], name: str, between: list[int]) -> None:
    """The order and the scores of [CLS] query [SEP] document [SEP]. BERT's document, and its [SEP], have type 1."""
    wanted = []
    for text in DOCUMENTS:
        ids = [1, *words(QUERY), *between, *words(text), 2]
        second = len(words(text)) + 1 if name == "bert" else 0
        wanted.append(score(files[name], ids, [0] * (len(ids) - second) + [1] * second))
    answer = post(server, model=name, return_documents=True)
    assert answer.status_code == 200, answer.text
    found = answer.json()["results"]
    assert [row["index"] for row in found] == sorted(range(len(wanted)), key=lambda i: -wanted[i])
    np.testing.assert_allclose([row["relevance_score"] for row in found], sorted(wanted, reverse=True), rtol=1e-4)
    assert [row["document"]["text"] for row in found] == [DOCUMENTS[row["index"]] for row in found]


def test_a_model_that_is_asked(server: Server, files: dict[str, Path]) -> None:
    """The score is the softmax of the logits of yes and no after the question."""
    answer = post(server, model="judge", documents=["a cat", {"text": "the dog"}], query="hello")
    assert answer.status_code == 200, answer.text
    from assay.serve.api.rerank import INSTRUCTION, QWEN
    from assay.text import Tokenizer

    tokenizer = Tokenizer.from_gguf(open_file(files["judge"]))
    yes, no = (tokenizer.encode(word, add_special=False)[0] for word in ("yes", "no"))
    for row in answer.json()["results"]:
        parts = {"{instruction}": INSTRUCTION, "{query}": "hello", "{document}": ["a cat", "the dog"][row["index"]]}
        ids, rest = [], QWEN
        for mark, text in parts.items():
            before, rest = rest.split(mark)
            ids += tokenizer.encode(before, add_special=not ids) + tokenizer.encode(text, add_special=False)
        logits = forward(files["judge"], ids + tokenizer.encode(rest, add_special=False)).logits[-1]
        wanted = 1 / (1 + math.exp(float(logits[no]) - float(logits[yes])))
        assert row["relevance_score"] == pytest.approx(wanted, rel=1e-3)


def test_coheres_route_and_the_best_ones(server: Server) -> None:
    every = post(server, model="bert").json()["results"]
    best = post(server, "/v2/rerank", model="bert", top_n=2).json()
    assert best["results"] == every[:2] and best["usage"]["total_tokens"] > 0
    many = post(server, model="bert", documents=DOCUMENTS * 10).json()["results"]
    assert sorted(row["index"] for row in many) == list(range(40))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "tiny"}, "unsupported"),
        ({"model": "bert", "documents": []}, "invalid_value"),
        ({"model": "bert", "documents": ["w1 " * 600]}, "context_length_exceeded"),
        ({"model": "bert", "documents": [3]}, "invalid_value"),
        ({"model": "bert", "documents": None}, "invalid_value"),
        ({"model": "bert", "texts": DOCUMENTS}, "invalid_value"),
    ],
)
def test_what_cannot_be_is_said(server: Server, body: dict[str, Any], code: str) -> None:
    assert post(server, **body).json()["error"]["code"] == code


def test_a_long_query_is_tokenized_once(server: Server) -> None:
    """Sixteen documents share it: they cost about as much as one. The prompt is refused when it is whole."""

    def seconds(n: int) -> float:
        began = time.monotonic()
        found = post(server, model="judge", query="w" * 8000, documents=["a"] * n).json()
        assert found["error"]["code"] == "context_length_exceeded"
        return time.monotonic() - began

    seconds(1)
    assert min(seconds(16) for _ in range(3)) < 6 * min(seconds(1) for _ in range(3)) + 0.05


def test_the_form_of_text_embeddings_inference(server: Server) -> None:
    every = post(server, model="bert").json()["results"]
    found = post(server, "/rerank", model="bert", documents=None, texts=DOCUMENTS, return_text=True, top_n=3).json()
    assert found == [
        {"index": r["index"], "score": r["relevance_score"], "text": DOCUMENTS[r["index"]]} for r in every[:3]
    ]


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/reranking"])
def test_llama_servers_paths(server: Server, path: str) -> None:
    assert post(server, path, model="bert").json()["results"] == post(server, model="bert").json()["results"]


def test_llama_servers_embeddings(server: Server) -> None:
    rows = httpx.post(f"{server.url}/embedding", json={"model": "tiny", "content": ["a", "b"]}, timeout=60).json()
    same = httpx.post(f"{server.url}/v1/embeddings", json={"model": "tiny", "input": ["a", "b"]}, timeout=60).json()
    assert [row["embedding"][0] for row in rows] == [row["embedding"] for row in same["data"]]


def test_coheres_client(server: Server) -> None:
    cohere = pytest.importorskip("cohere", reason="the cohere package is not installed")
    client = cohere.ClientV2(api_key="none", base_url=server.url)
    found = client.rerank(model="bert", query=QUERY, documents=DOCUMENTS, top_n=1)
    assert found.results[0].index == post(server, model="bert").json()["results"][0]["index"]
