"""Ways of printing a layer, each understood as it was meant: those the reader was built with, and others' since."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.gguf import open_file
from assay.graph import split
from assay.models import Model, load
from assay.verify.dumps.matching.layer_numbers import number_layers
from assay.verify.dumps.matching.value_decisions import decide_by_values
from assay.verify.dumps.naming.foreign_names import translate
from assay.verify.dumps.node_translation import candidates
from assay.verify.dumps.observation import Observation
from assay.verify.dumps.printed.log_reader import read_log
from tests import tiny
from tests.verify.dumps import formats, habits, kept_apart, strangers, unseen_formats
from tests.verify.dumps.formats import Format, Meant, Run

_ROLES = (
    "l_out", "attn_norm", "ffn_norm", "ffn_out", "ffn_inp", "ffn_swiglu", "ffn_up", "ffn_gate", "attn_out", "kqv_out",
    "Qcur", "Kcur", "Vcur", "Qcur_proj", "Kcur_proj",
)  # fmt: skip
_N = 8


@pytest.fixture(scope="module")
def run() -> Run:
    return values()


def values() -> Run:
    rng = np.random.default_rng(1)
    names = ["embd", "result_norm", "result_output", *(f"{role}-{n}" for n in range(3) for role in _ROLES)]
    return Run((1, 300, 297, 5, 6, 7, 8, 9), {name: rng.normal(size=(_N, 16)) for name in names}, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return small_model(tmp_path_factory.mktemp("formats"))


def small_model(folder: Path) -> Model:
    return load(open_file(tiny.make(folder / "tiny.gguf", n_layer=3)))


def nodes_of(obs: Observation, model: Model) -> set[str]:
    """What the observation's words may mean."""
    return {obs.name, *obs.others, *candidates(obs, model)}


def row_of(row: int | None) -> int | None:
    return row + _N if row is not None and row < 0 else row


def understood_by_words(form: Format, run: Run, model: Model) -> None:
    dump = read_log(Path("x.log"), text=form.write(run))
    check(form, run, model, number_layers(dump.observations, dump.unread, run.n_layer)[0])


@cache
def _wrong(name: str) -> NDArray[np.float64]:
    """Other values for a node, the same for every format."""
    found = np.random.default_rng(crc32(name.encode())).normal(size=(_N, 16))
    found.flags.writeable = False
    return found


def read_in_a_hunt(form: Format, run: Run, model: Model) -> list[Observation]:
    """What is read where the engine is right in the embedding and in layer 0, and wrong from layer 1 on."""
    dump = read_log(Path("x.log"), text=form.write(run))

    def truth(names: Collection[str]) -> dict[str, NDArray[np.float64]]:
        right = {n: v for n, v in run.values.items() if n == "embd" or split(n)[1] == 0}
        return {name: right[name] if name in right else _wrong(name) for name in names}

    observations, unread, _ = number_layers(dump.observations, dump.unread, run.n_layer)
    named = [replace(o, name=names[0], others=names[1:]) for o in observations if (names := candidates(o, model))]
    return decide_by_values(named, unread, model, _N, truth)[0]


def understood_by_values(form: Format, run: Run, model: Model) -> None:
    found = read_in_a_hunt(form, run, model)
    for obs in found:
        if obs.kind in ("first", "last") and obs.rows is not None and obs.name in run.values:
            x = run.values[obs.name][obs.rows[0]]
            values = x[: len(obs.data)] if obs.kind == "first" else x[-len(obs.data) :]
            assert (np.abs(obs.target() - values) <= np.array(obs.printed) * 1.001 + 2e-7).all(), (obs.name, obs.rows)
    check(form, run, model, found)


def reading(fact: Meant, left: list[Observation], model: Model) -> Observation | None:
    """The observation that is what a log meant by some of its numbers."""
    said, kind, row, values = fact
    name = translated[0] if (translated := translate(said, "", model.graph)) else said
    kinds = ("at", "top") if kind in ("at", "top") else ("first", "at") if kind == "first" else (kind,)
    for obs in left:
        rows = (None if obs.rows is None else row_of(obs.rows[0]), row_of(obs.possible_row))
        begins = kind == "first" and row == 0 and obs.rows is None  # a tensor begins with its first row
        if name not in nodes_of(obs, model) or obs.kind not in kinds or not (row_of(row) in rows or begins):
            continue
        if kind in ("at", "top"):
            return obs  # several lines may be one observation
        if len(obs.target()) == len(values):
            slack = np.array(obs.printed) + 2e-7 * np.abs(values)
            if (np.abs(obs.target() - np.array(values)) <= slack * 1.001).all():
                return obs
    return None


def check(form: Format, run: Run, model: Model, left: list[Observation]) -> None:
    for fact in form.means(run):
        obs = reading(fact, left, model)
        assert obs is not None, fact
        if fact[1] not in ("at", "top"):
            left.remove(obs)
    assert {obs.kind for obs in left} <= {"at", "top"}


FORMS = [form for part in (formats, unseen_formats, kept_apart, habits) for form in part.FORMATS]
FORMS += [form for form in strangers.FORMATS if form.name.startswith("first")]
STRANGERS = [
    pytest.param(
        form, marks=pytest.mark.xfail(strict=True, reason="not understood") if form.name in strangers.UNREAD else ()
    )
    for form in strangers.FORMATS
    if not form.name.startswith("first")
]
# Rows whose words say nothing, and whose values do.
NO_WORDS = {
    "step numbers before names", "private names only", "buffer names of a runtime",
    "numbered checkpoints with a legend", "opencl buffers by enqueueReadBuffer",
}  # fmt: skip


@pytest.mark.parametrize("form", [f for f in FORMS if f.name not in NO_WORDS], ids=lambda f: f.name)
def test_it_is_understood_as_meant(form: Format, run: Run, model: Model) -> None:
    understood_by_words(form, run, model)


@pytest.mark.parametrize("form", [*FORMS, *STRANGERS], ids=lambda f: f.name)
def test_it_is_understood_where_the_engine_is_wrong_from_layer_1_on(form: Format, run: Run, model: Model) -> None:
    understood_by_values(form, run, model)


NOISE = """\
loader: loaded meta data with 23 key-value pairs and 201 tensors from tiny.gguf (version V3)
loader: - kv   4:                     llama.embedding_length u32 = 2048
loader: - kv   5:                          llama.block_count u32 = 22
print_info: f_norm_rms_eps   = 1.0e-05
load_tensors: offloading 22 repeating layers to GPU
blk.0.attn_q.weight [2048, 2048] Q8_0
kv cache size: 11.00 MiB, K (f16): 5.50 MiB, V (f16): 5.50 MiB
threads=8 batch=512 flash_attn=0 temp=0.00 top_k=40 top_p=0.95
Using attention backend: sdpa
hidden_size: 2048, num_layers: 22, num_heads: 32, head_dim: 64, rope_theta: 10000.0, norm_eps: 1e-05
prompt eval time = 182.33 ms / 8 tokens
"""


@pytest.mark.parametrize("form", [f for f in FORMS if f.name not in NO_WORDS], ids=lambda f: f.name)
def test_what_an_engine_prints_of_itself_changes_nothing(form: Format, run: Run, model: Model) -> None:
    understood_by_words(replace(form, write=lambda run: NOISE + form.write(run)), run, model)
