"""Receipts: any change of a token, a setting, a row or a weight is found, and the bits are those of every replay."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Arithmetic
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.runtime.draws import Draws, philox
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.receipt_replay import replay
from assay.runtime.receipts import (
    Receipt,
    Signer,
    chain,
    header_of,
    make_receipt,
    read_receipt,
    row_digest,
    settings_of,
)
from assay.runtime.sampler import sample
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job
from assay.runtime.speculation import Speculator
from tests import tiny

pytest.importorskip("cryptography")
SECRET = bytes(range(32))
PARAMS = SamplerParams(temp=0.9, top_k=20, seed=7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("receipts") / "a.gguf")


class Eager(Speculator):
    """Verifies every drafted token, also where that is slower."""

    accepted = 0

    def _best_size(self, base: int, chances: list[float]) -> int:
        return len(chances)

    def learn(self, sequence: Any, drawn: list[int]) -> None:
        self.accepted += len(drawn) - 1
        super().learn(sequence, drawn)


def generated(path: Path, jobs: list[Job], chunk: int = 512, speculator: Speculator | None = None) -> list[Receipt]:
    """Receipts of jobs that are computed together."""
    on = open_model(path, OpenOptions(threads=1, cache_size=2048))
    engine = on.engine()
    scheduler = Scheduler(engine, on.tokenizer, n_ctx=256, chunk=chunk, speculator=speculator)
    sequences = [scheduler.make(replace(job, receipt=True), lambda update: None) for job in jobs]
    scheduler.add(sequences)
    while not all(s.finished for s in sequences):
        deliver(scheduler.step())
    found = []
    for s in sequences:
        header = header_of(on.file.sha256, engine.arithmetic, s.job.params, s.seed, s.job.ids, constrained=False)
        found.append(make_receipt(header, s.job.ids, s.ids[s.n_prompt :], s.row_digests, Signer(SECRET)))
    engine.close()
    return found


@pytest.fixture(scope="module")
def receipt(path: Path) -> Receipt:
    return generated(path, [Job((1, 5, 9, 3), PARAMS, 12, ignore_eos=True)])[0]


def test_replay_agrees_whole_and_at_positions(path: Path, receipt: Receipt) -> None:
    model = load(open_file(path))
    assert len(receipt.rows) == len(receipt.tokens) == 12
    whole = replay(receipt, model, threads=1)
    assert whole and whole.signed and whole.compared == 12, whole
    some = replay(receipt, model, positions=3, seed=1, key=Signer(SECRET).public, threads=1)
    assert some and some.compared == 3, some


def test_batches_and_cuts_give_the_same_receipt(path: Path, receipt: Receipt) -> None:
    jobs = [Job((1, 5, 9, 3), PARAMS, 12, ignore_eos=True), Job((2, 2, 4), replace(PARAMS, seed=8), 9, ignore_eos=True)]
    assert generated(path, jobs, chunk=2)[0] == receipt


def test_speculation_gives_the_same_receipt(path: Path) -> None:
    """Also where drafts are accepted: a greedy answer soon repeats itself."""
    job, eager = Job((1, 5, 9, 3) * 5, SamplerParams(temp=0.0, seed=3), 60, ignore_eos=True), Eager()
    assert generated(path, [job], speculator=eager) == generated(path, [job])
    assert eager.accepted > 5


def test_every_setting_is_bound(path: Path, receipt: Receipt) -> None:
    """The chain changes with each of them, so a stranger cannot change one; nor the seed, the file, the arithmetic."""
    model = load(open_file(path))
    for name, value in receipt.header["settings"].items():
        other: Any = [[1, 0.5]] if isinstance(value, list) else value + 1
        header = {**receipt.header, "settings": {**receipt.header["settings"], name: other}}
        assert "chain" in replay(replace(receipt, header=header), model).reason, name
    for name in receipt.header.keys() - {"settings", "prompt"}:
        header = {**receipt.header, name: f"{receipt.header[name]}1"}
        assert "chain" in replay(replace(receipt, header=header), model).reason, name


def test_every_change_is_found(path: Path, receipt: Receipt) -> None:
    """By the hashes alone where a stranger changed it, by the replay where the signer did."""
    model, signer = load(open_file(path)), Signer(SECRET)
    n = len(receipt.tokens)
    for i in range(n):
        tokens = list(receipt.tokens)
        tokens[i] = (tokens[i] + 1) % model.hparams.n_vocab
        assert not replay(replace(receipt, tokens=tuple(tokens)), model)
        lied = make_receipt(receipt.header, receipt.prompt, tokens, receipt.rows, signer)
        found = replay(lied, model, threads=1)
        assert not found and found.signed and found.parts_at == i, (i, found)
    for i in range(n):
        rows = list(receipt.rows)
        rows[i] = bytes(16)
        found = replay(make_receipt(receipt.header, receipt.prompt, receipt.tokens, rows, signer), model, threads=1)
        assert not found and found.parts_at == i, (i, found)
    for change in ({"temp": 0.2}, {"top_k": 3}, {"min_p": 0.9}):
        header = {**receipt.header, "settings": {**receipt.header["settings"], **change}}
        assert not replay(replace(receipt, header=header), model)
        lied = make_receipt(header, receipt.prompt, receipt.tokens, receipt.rows, signer)
        assert replay(lied, model, threads=1).parts_at is not None, change
    other = {**receipt.header, "seed": "8"}
    assert not replay(make_receipt(other, receipt.prompt, receipt.tokens, receipt.rows, signer), model, threads=1)
    assert not replay(replace(receipt, prompt=(1, 5, 9, 4)), model)
    assert not replay(receipt, model, key="00" * 32)
    assert not replay(replace(receipt, signature="00" * 64), model)


def test_every_changed_byte_of_a_file_is_found(path: Path, receipt: Receipt, tmp_path: Path) -> None:
    """One of each tensor and one of the metadata: the file's hash covers them all."""
    raw, file = path.read_bytes(), open_file(path)
    assert receipt.header["file"] == hashlib.sha256(raw).hexdigest()
    for at in [path.stat().st_size - 1, *(t.offset + t.nbytes // 2 for t in file.tensors.values())]:
        changed = tmp_path / "c.gguf"
        changed.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert open_file(changed).sha256 != receipt.header["file"], at


def test_a_changed_weight_is_found(path: Path, receipt: Receipt, tmp_path: Path) -> None:
    """By the file's hash; and by the logits, if the signer lies about the hash."""
    raw = bytearray(path.read_bytes())
    file = open_file(path)
    raw[file.tensors["blk.0.attn_q.weight"].offset + 5] ^= 0x10
    changed = tmp_path / "b.gguf"
    changed.write_bytes(raw)
    model = load(open_file(changed))
    assert "file" in replay(receipt, model).reason
    header = {**receipt.header, "file": model.file.sha256}
    lied = make_receipt(header, receipt.prompt, receipt.tokens, receipt.rows, Signer(SECRET))
    assert replay(lied, model, threads=1).parts_at is not None


def test_reading(receipt: Receipt) -> None:
    data = json.loads(json.dumps(receipt.to_dict()))
    assert read_receipt(data) == replace(receipt, header=data["header"])
    assert settings_of(receipt.header) == (PARAMS, 7)
    bad: list[Any] = [None, [], {}, {**data, "rows": 5}, {**data, "tokens": [True]}, {**data, "rows": ["zz"] * 12},
                      {**data, "header": {"version": 5}}, {**data, "header": {"version": [2]}},
                      {**data, "chain": "ab"}]  # fmt: skip
    for item in bad:
        with pytest.raises(AssayError):
            read_receipt(item)


def test_vectors() -> None:
    """The vectors of docs/reference/receipts.md."""
    row = row_digest(np.array([0.0, 1.0, -2.5, 3.0], np.float32))
    assert row.hex() == VECTORS["row"]
    assert row_digest(np.arange(20, dtype=np.float32) / 2).hex() == "ea1fc1ee202256dfee7f7ba60bfca54b"
    header = header_of("00" * 32, Arithmetic("native", "fast", "f16", 1), SamplerParams(temp=0.0), 5, [1, 2, 3],
                       constrained=False)  # fmt: skip
    link = chain(header, [7], [row])
    assert link == VECTORS["chain"] and Signer(SECRET).public == VECTORS["key"]
    assert Signer(SECRET).sign(link) == VECTORS["signature"]
    for version, vectors in OLDER.items():  # which are still read
        first = row_digest(np.array([0.0, 1.0, -2.5, 3.0 if version == 3 else np.nan], np.float32), version)
        assert (first.hex(), chain({**header, "version": version}, [7], [first])) == vectors


def test_vectors_of_draws() -> None:
    """The vectors of docs/reference/receipts.md."""
    assert philox((5, 0), (3, 0, 0, 0))[:2] == (0xD91382DC275883CD, 0x0F36625E53A406A7)
    assert Draws(5, 3).random() == 0.8479539668545346
    plain = SamplerParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
    row, before = np.array([0.0, 1.0, -2.5, 3.0], np.float32), [1, 2, 3]
    assert [sample(row, before, params, Draws(5, 3)).id for params in (plain, SamplerParams())] == [1, 3]


def test_vectors_of_filters() -> None:
    """The table of docs/reference/receipts.md, read from the page."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "receipts.md").read_text()
    table = page.split("| settings | token with seed 5 | seed 28 |", 1)[1].split("In older versions", 1)[0]
    row, before = np.arange(8, 0, -1, dtype=np.float32) / 4, [1, 2, 3, 1, 2]
    lines = re.findall(r"^\| (.*) \| (\d+) \| (\d+) \|$", table, re.M)
    assert len(lines) == 9
    for words, *tokens in lines:
        given: dict[str, Any] = {
            name: json.loads(text.strip("`")) for name, text in re.findall(r"`(\w+)` (`.*?`|[\d.]+)", words)
        }
        if bias := given.get("logit_bias"):
            given["logit_bias"] = tuple((token, float(number)) for token, number in bias)
        params = SamplerParams(**{"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given)
        assert [sample(row, before, params, Draws(seed, 5)).id for seed in (5, 28)] == [int(t) for t in tokens], words


def test_floats_of_settings_are_floats_however_they_are_written() -> None:
    """JavaScript writes 0 for 0.0, and a caller may give whole numbers: the chain is the same."""
    first = row_digest(np.array([0.0, 1.0, -2.5, 3.0], np.float32))
    rows = [first, row_digest(np.arange(20, dtype=np.float32) / 2), first]
    chains = set()
    for one in (1, 1.0):
        params = SamplerParams(temp=one, min_p=1e-5, logit_bias=((3, one), (4, -math.inf), (5, 1.5)))
        header = header_of("00" * 32, Arithmetic("native", "fast", "f16", 1), params, 5, [1, 2, 3], constrained=False)
        receipt = make_receipt(header, [1, 2, 3], [7, 8, 9], rows)
        whole = json.loads(
            json.dumps(receipt.to_dict()),
            parse_float=lambda text: int(float(text)) if float(text) == int(float(text)) else float(text),
        )
        assert whole["header"]["settings"]["temp"] == 1 and isinstance(whole["header"]["settings"]["temp"], int)
        read = read_receipt(whole)
        assert chain(read.header, read.tokens, read.rows) == receipt.link
        chains.add(receipt.link)
    assert chains == {"bfb1d22ac1e6c41e2ccf11a5ff558a62ff171c104afef809d04f5e5aeb1f84b0"}


def test_the_page_lists_every_setting_with_its_type() -> None:
    """A verifier needs the types: canonical JSON tells 0 from 0.0."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "receipts.md").read_text()
    section = page.split("## Draws", 1)[1].split("## What it proves", 1)[0]
    settings = header_of("00", Arithmetic("native", "fast", "f16", 1), SamplerParams(), 5, [1], constrained=False)
    for name, value in settings["settings"].items():
        assert f"`{name}`" in section, name
        if isinstance(value, int):
            assert re.search(rf"`{name}` (\| |\()integer", section), name


def by_the_page(row: np.ndarray[Any, Any]) -> bytes:
    """The sums as docs/reference/receipts.md writes them, in NumPy."""
    words = np.append(row.view("<u4"), np.zeros(-len(row) % 8, np.uint32)).reshape(-1, 2, 4)
    x = np.arange(words.size + 8, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(0x85EBCA6B)
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    keys = (x ^ x >> 16).reshape(-1, 4)
    low, high = words[:, 0], words[:, 1]
    sums = [
        ((low + keys[i : -2 + i : 2]).astype(np.uint64) * (high + keys[i + 1 :: 2][: len(high)])).sum() for i in (0, 1)
    ]
    return np.array(sums, "<u8").tobytes()


def test_the_sums_of_a_row_are_those_of_the_page() -> None:
    rng = np.random.default_rng(4)
    for n in (1, 4, 7, 8, 9, 64, 1001):
        row = rng.standard_normal(n).astype(np.float32)
        assert row_digest(row) == by_the_page(row)


def row_by_the_page(values: list[float]) -> bytes:
    """The same with Python's integers, for a reader who has no NumPy."""

    def key(i: int) -> int:
        x = (i * 0x9E3779B9 + 0x85EBCA6B) % 2**32
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    words = [int.from_bytes(struct.pack("<f", v), "little") for v in values] + [0] * (-len(values) % 8)
    a = b = 0
    for i in (i for i in range(len(words)) if i % 8 < 4):
        low, high = words[i], words[i + 4]
        a += (low + key(i)) % 2**32 * ((high + key(i + 4)) % 2**32)
        b += (low + key(i + 4)) % 2**32 * ((high + key(i + 8)) % 2**32)
    return (a % 2**64).to_bytes(8, "little") + (b % 2**64).to_bytes(8, "little")


def test_the_page_alone_gives_its_vectors() -> None:
    """Header, rows, chain and signature as the page writes them, with the standard library and no code of assay."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "receipts.md").read_text()
    header = re.findall(r"```json\n(.*)\n```", page)[-1]
    row = row_by_the_page([0.0, 1.0, -2.5, 3.0])
    link = hashlib.blake2b(b"assay receipt 4\n" + header.encode(), digest_size=32).digest()
    link = hashlib.blake2b(link + struct.pack("<I", 7) + row, digest_size=32).digest()
    prompt = hashlib.blake2b(struct.pack("<III", 1, 2, 3), digest_size=32).hexdigest()
    assert json.loads(header)["prompt"] == prompt
    for found in (row.hex(), row_by_the_page([i / 2 for i in range(20)]).hex(), link.hex()):
        assert f"`{found}`" in page
    public, signature = (re.search(rf"`([0-9a-f]{{{n}}})`", page[page.index("0, 1, … 31") :]) for n in (64, 128))
    assert public is not None and signature is not None
    module = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    module.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public[1])).verify(bytes.fromhex(signature[1]), link)


def test_every_bit_of_a_row_counts() -> None:
    """And its place: two logits that change places give another hash."""
    row = np.random.default_rng(3).standard_normal(37).astype(np.float32)
    found = {row_digest(row), row_digest(row[::-1])}
    for i in range(len(row)):
        for bit in range(32):
            bits = row.view(np.uint32).copy()
            bits[i] ^= np.uint32(1 << bit)
            found.add(row_digest(bits.view(np.float32)))
    assert len(found) == 2 + 32 * len(row)


VECTORS = {
    "row": "3ed7897978efc2c316bd75d7114a7e04",
    "chain": "343fda7b12f0104770736c101c8dff7999439c3afbfd0e2016e0c4e486a746ae",
    "key": "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
    "signature": "0f8bdf42fbb7fbd70d4ab9173e75d2f982306eebdeb3579b87657bc8a96eda1d"
    "1cb16781c418df19b4c4fa3193491660ab2ef2779cf82e93d2849d8b56b84f0b",
}
OLDER = {
    1: ("18045e2f0b1e96487a37ca94fbd49fb0", "54edcd177ca75803f18efdc6f75f96f3a667964d165a9ec540acb4d45bb8d845"),
    2: ("784cee7ec5f78cdd2eb1bfb6156d12fb", "a8b1881b2777073c8791d899848e8fcb8df1bdc568d563db5ac1efc8afb82cab"),
    3: ("bc412961432d3f0051e7fc6fd1b9da8e", "b3049afed4f89df4d6ea5e9d9899cdac7556c9b11bfcf1694f5b70a1f18c53b2"),
}
