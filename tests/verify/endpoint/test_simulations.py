"""Simulations of an audit: answers known by their text alone, and weights in small floats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.gguf.codecs import decode, encode
from assay.gguf.types import by_name
from assay.graph import Node
from assay.models import load
from assay.text import Tokenizer
from assay.verify.endpoint.alternatives import beginnings
from assay.verify.endpoint.claimed_model import ClaimedModel, Setting, cached_row, coarser_mixes, hadamard
from assay.verify.endpoint.float_weights import FORMATS, fp8, mxfp4
from assay.verify.endpoint.own_draws import judged_repeats
from assay.verify.endpoint.served_text import Place, ServedText, Spelling, place_losses, spelled
from assay.verify.endpoint.spelled_text import respelled, spelled_repeats
from assay.verify.endpoint.standings import Scoreboard
from tests.synthetic import make_kquant

WORDS = ("The cat", "In May", "A red", "No rain", "Two and")
TEXTS = tuple(f"{a} {b}" for a in WORDS for b in ("sat", "we", "door", "fell"))
N = 3  # tokens of an answer: most tokens of this vocabulary are single bytes, and many are no text


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")


def test_a_text_is_cut_as_the_claim_generated_it(path: Path) -> None:
    """The tokenizer would cut it otherwise, which would look like another model."""
    model = load(open_file(path))
    tokenizer = Tokenizer.from_gguf(model.file)
    tried = unlike = 0
    with ClaimedModel(model, threads=1) as claimed:
        for text in TEXTS:
            ids = list(tokenizer.encode(text))
            n = len(ids)
            for _ in range(N):
                ids.append(int(claimed.at(ids, [len(ids)])[0].argmax()))
            said = b"".join(tokenizer.piece(token) for token in ids[n:]).decode("utf-8", "replace")
            if "\ufffd" in said or tokenizer.eog & set(ids[n:]):
                continue
            told = [*ids[:n], *tokenizer.encode(said, add_special=False, parse_special=False)]
            tried, unlike = tried + 1, unlike + (told != ids)
            found = respelled(spelled(told, n, False, text, Spelling(said)), claimed, tokenizer)
            assert list(found.ids) == ids[: len(found.ids)] and len(found.ids) > n
            assert max(place_losses(found, claimed.rows(found))) == 0
            other = said[: len(said) // 2] + "#" + said[len(said) // 2 :]
            told = [*ids[:n], *tokenizer.encode(other, add_special=False, parse_special=False)]
            parted = respelled(spelled(told, n, False, text, Spelling(other)), claimed, tokenizer)
            assert max(place_losses(parted, claimed.rows(parted))[:-1], default=0) == 0, "at most the last one departs"
    assert tried and unlike, "the test needs a text that the tokenizer cuts otherwise"


def test_equal_texts_of_two_seeds(path: Path) -> None:
    """The chance of a token is that of all tokens that the text could go on with, so it is never too small."""
    model = load(open_file(path))
    tokenizer, rng, pairs = Tokenizer.from_gguf(model.file), np.random.default_rng(4), []
    plain = [i for i in range(tokenizer.n_vocab) if tokenizer.piece(i).isalpha() and tokenizer.piece(i).isascii()]
    with ClaimedModel(model, threads=1) as claimed:
        for text in TEXTS[:4]:
            ids, n = list(tokenizer.encode(text)), len(tokenizer.encode(text))
            for _ in range(6):
                p = np.exp(claimed.at(ids, [len(ids)])[0][plain].astype(np.float64))
                ids.append(int(rng.choice(plain, p=p / p.sum())))
            said = b"".join(map(tokenizer.piece, ids[n:])).decode()
            told = [*ids[:n], *tokenizer.encode(said, add_special=False, parse_special=False)]
            first = spelled(told, n, False, text, Spelling(said))
            parted = spelled(told[:-1], n, False, text, Spelling(f"{said[:1]}#{said[1:]}"))
            pairs.append(spelled_repeats(first, first, claimed, tokenizer))
            own = claimed.at(ids, range(n, len(ids)))
            assert pairs[-1] and pairs[-1][0].chance >= own[0][ids[n]] - 1e-6 and all(r.same for r in pairs[-1])
            other = spelled_repeats(first, parted, claimed, tokenizer)
            assert [r.same for r in other] == [True] * (len(other) - 1) + [False]
            assert not judged_repeats([other], 1e-3), "one equal letter is chance"
    assert "same tokens" in judged_repeats(pairs, 1e-3)[0].words


def test_confidence_is_shared_and_what_does_not_fit_is_not_believed(path: Path) -> None:
    """A server of the file with BOS twice; then the same evidence with an alternative that predicts the same."""
    model = load(open_file(path))
    tokenizer = Tokenizer.from_gguf(model.file)
    twice = next(a for a in beginnings(tokenizer) if a.name == "BOS twice")
    with ClaimedModel(model, threads=1) as claimed:
        board = Scoreboard(claimed, 1e-3)
        assert board.weight("") == 1 and not board.likely(), "without evidence"
        for text in TEXTS[:8]:
            ids = tuple(tokenizer.encode(text))
            rows = claimed.at((ids[0], *ids), [n + 1 for n in range(4, len(ids) + 1)])
            places = [Place(n, dict(enumerate(row.tolist())), None) for n, row in enumerate(rows, 4)]
            board.add(ServedText(ids, len(ids), tuple(places)))
        board.consider(replace(twice, name="BOS missing", front=(), drop=1))
        board.consider(twice)
        lead, confidence = board.likely()[0]
        assert lead.name == "BOS twice" and confidence > 0.99 and board.weight("BOS missing") < 1e-3
        board.consider(replace(twice, name="the same"))
        assert [round(c, 2) for _, c in board.likely()[:2]] == [0.5, 0.5]


@pytest.mark.parametrize("name", FORMATS)
def test_small_floats(name: str) -> None:
    """Rounding twice is rounding once, and the error is that of the format."""
    x = np.random.default_rng(1).normal(0, 0.02, (6, 64)).astype(np.float32)
    once = FORMATS[name](x)
    assert np.allclose(FORMATS[name](once), once, rtol=1e-6)
    error = np.abs(once - x).max() / np.abs(x).max()
    assert (0.005 if name == "FP8" else 0.02) < error < (0.04 if name == "FP8" else 0.3)
    assert not np.any(FORMATS[name](np.zeros((2, 32), np.float32)))


def test_levels_of_mxfp4_and_fp8() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = [6, 5.1, 0.3, -0.2]
    assert mxfp4(row)[0, :4].tolist() == [6, 6, 0.5, 0]
    assert fp8(np.array([[448.0, 17.0, 1.0625]]))[0].tolist() == [448, 16, 1]


@pytest.mark.parametrize(("name", "n_head", "width", "turned"), [
    ("cache_k-0", 2, 128, 128), ("cache_k-0", 1, 192, 64), ("cache_v-0", 2, 128, 64), ("cache_v-0", 8, 64, 64),
    ("cache_v-0", 4, 32, 1),
])  # fmt: skip
def test_llama_cpp_turns_within_a_head(name: str, n_head: int, width: int, turned: int) -> None:
    """Keys by the largest power of two in a head, values by 64; narrower heads stay as they are."""
    node = Node(name, "cache", ("x",), attrs={"n_head": n_head})
    y = np.random.default_rng(3).normal(size=(5, n_head * width)).astype(np.float32)
    turn = hadamard(turned)
    blocks = (y.reshape(-1, turned) @ turn).reshape(-1, 32).astype(np.float32)
    right = decode(by_name("Q4_0"), encode(by_name("Q4_0"), blocks)).reshape(-1, turned) @ turn.T
    assert np.allclose(cached_row(node, y, "q4_0", True), right.reshape(y.shape), atol=1e-5)


def test_files_in_small_floats_are_computed(path: Path) -> None:
    model = load(open_file(path))
    ids = Tokenizer.from_gguf(model.file).encode(TEXTS[0])
    with ClaimedModel(model, threads=1) as claimed:
        own = claimed.at(ids, [len(ids)])
        gaps = [np.abs(claimed.at(ids, [len(ids)], s) - own).mean() for s in (Setting(mix="FP8"), Setting(mix="MXFP4"))]
        cache = np.abs(claimed.at(ids, [len(ids)], Setting(cache="fp8")) - own).mean()
    assert 0.001 < gaps[0] < gaps[1] and cache > 0.001
    assert "MXFP4" in coarser_mixes(model.file, ("FP8", "MXFP4")) and "FP8" not in coarser_mixes(model.file, ("FP8",))
