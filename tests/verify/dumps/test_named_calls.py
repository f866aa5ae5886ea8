"""Arrays of several calls in one file or folder are the steps of one sequence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.verify.dumps.load import read_dump

CALLS = {
    "c0/ c1/ c2/": ("c0/", "c1/", "c2/"),
    "prefill/ step1/ step2/": ("prefill/", "step1/", "step2/"),
    "prompt. decode_0. decode_1.": ("prompt.", "decode_0.", "decode_1."),
    "prompt__ dec0__ dec1__": ("prompt__", "dec0__", "dec1__"),
    "pp: tg/0: tg/1:": ("pp:", "tg/0/", "tg/1/"),
    "prefill/ t0/ t1/": ("prefill/", "t0/", "t1/"),
    "prefill__ tok1__ tok2__": ("prefill__", "tok1__", "tok2__"),
}
IDS = {
    "tokens": {"tokens": [5, 7, 9, 11, 13]},
    "prompt and steps": {"ids_prompt": [5, 7, 9], "ids_steps": [11, 13]},
    "prompt and generated, one more than fed": {"prompt_ids": [5, 7, 9], "generated": [11, 13, 15]},
    "ids and fed": {"ids": [5, 7, 9], "fed": [11, 13]},
    "given by the caller": {},
}


def arrays(calls: tuple[str, ...]) -> dict[str, np.ndarray]:
    found = {}
    for call, rows in zip(calls, ((0, 3), (3, 4), (4, 5)), strict=True):
        whole = np.arange(20, dtype=np.float32).reshape(5, 4) / 8
        found |= {f"{call}l_out-0": whole[slice(*rows)], f"{call}ffn_out-0": whole[slice(*rows)] * 2}
    return found


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("calls", CALLS)
def test_calls_by_their_names(tmp_path: Path, calls: str, ids: str) -> None:
    beside = {name: np.array(listed) for name, listed in IDS[ids].items()}
    np.savez(tmp_path / "a.npz", **arrays(CALLS[calls]), **beside)
    found = read_dump(tmp_path / "a.npz")
    assert found.steps == (3, 1, 1)
    assert found.tokens == ((5, 7, 9, 11, 13) if ids != "given by the caller" else ())
    assert [o.array().shape for o in found.observations if o.name == "l_out-0"] == [(5, 4)]


def test_a_folder_with_ids_in_its_manifest(tmp_path: Path) -> None:
    for name, value in arrays(CALLS["prompt__ dec0__ dec1__"]).items():
        np.save(tmp_path / f"{name}.npy", value)
    listed = {"prompt": [5, 7, 9], "dec0": [11], "dec1": [13]}
    (tmp_path / "manifest.json").write_text(json.dumps({"ids": listed, "arrays": []}))
    found = read_dump(tmp_path)
    assert found.steps == (3, 1, 1) and found.tokens == (5, 7, 9, 11, 13)


@pytest.mark.parametrize("names", [("t0.weight", "t1.weight"), ("c0/a", "c2/a"), ("c0/a", "b/a"), ("prefill/a",)])
def test_other_names_are_no_calls(tmp_path: Path, names: tuple[str, ...]) -> None:
    np.savez(tmp_path / "a.npz", **{name: np.ones((2, 3), np.float32) for name in names})
    assert {o.where for o in read_dump(tmp_path / "a.npz").observations} == set(names)
