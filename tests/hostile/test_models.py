"""Model files whose header is right and whose contents are not: one line, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from tests import tiny
from tests.hostile.conftest import Bounded, one_line


def remade(path: Path, source: Path, shapes: dict[str, tuple[int, ...]], names: dict[str, str] | None = None) -> Path:
    """The same file with other shapes (cut or repeated to fit) or names for some of its tensors."""
    with open_file(source) as file:
        tensors = []
        for name, info in file.tensors.items():
            shape = shapes.get(name, info.shape)
            data: Any = file.raw(name) if shape == info.shape else np.resize(file.decode(name), shape)
            kind = info.type if shape == info.shape else by_name("F32")
            tensors.append(Tensor((names or {}).get(name, name), shape, kind, data.copy()))
        write(path, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return path


YARN = {"type": "yarn", "factor": 2.0, "original_context_length": 64}
CASES: dict[str, dict[str, Any]] = {
    "yarn with base 1": {"rope_scaling": YARN, "metadata": {"llama.rope.freq_base": 1.0}},
    "yarn with a huge beta": {"rope_scaling": YARN | {"yarn_beta_slow": 1e38}},
    "yarn with a tiny beta": {"rope_scaling": YARN | {"yarn_beta_fast": 1e-44}},
    "a huge scale": {"rope_scaling": {"type": "linear", "factor": 3e38}},
    "epsilon of nothing": {"metadata": {"llama.attention.layer_norm_rms_epsilon": 1e-44}},
    "the tokenizer's kind is numbers": {"metadata": {"tokenizer.ggml.model": np.array([1, 2], np.uint32)}},
    "the architecture is numbers": {"metadata": {"general.architecture": np.array([1, 2], np.uint32)}},
    "the template is numbers": {"metadata": {"tokenizer.chat_template": np.array([1], np.int8)}},
}
HARMLESS = {
    "a huge scale",
    "yarn with a huge beta",
    "yarn with a tiny beta",
    "the template is numbers",
}  # to verbs that do not read it
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "a matrix with a third axis": {"blk.0.attn_k.weight": (32, 64, 1)},
    "the gate's twin with a third axis": {"blk.1.ffn_up.weight": (96, 64, 1)},
    "a head with a third axis": {"output.weight": (320, 64, 1)},
    "a norm with a second axis": {"output_norm.weight": (64, 1)},
    "a norm that is a matrix": {"blk.0.attn_norm.weight": (64, 64)},
    "an embedding with a third axis": {"token_embd.weight": (320, 1, 64)},
}
EXPERTS: dict[str, dict[str, tuple[int, ...]]] = {
    "fewer experts in one matrix": {"blk.0.ffn_down_exps.weight": (2, 64, 96)},
    "more choices than experts": {"blk.0.ffn_gate_inp.weight": (8, 64)},
    "an expert without its matrix": {"blk.1.ffn_up_exps.weight": (384, 64)},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bad")
    untied = tiny.make(folder / "untied.gguf", tied=False)
    experts = tiny.make(folder / "experts.gguf", n_expert=4)
    made = {name: tiny.make(folder / f"{i}.gguf", **options) for i, (name, options) in enumerate(CASES.items())}
    made |= {name: remade(folder / f"s{i}.gguf", untied, shapes) for i, (name, shapes) in enumerate(SHAPES.items())}
    made |= {name: remade(folder / f"e{i}.gguf", experts, shapes) for i, (name, shapes) in enumerate(EXPERTS.items())}
    digits = {"blk.1.ffn_up.weight": f"blk.{'1' * 40}.x"}
    made["a block number of forty digits"] = remade(folder / "digits.gguf", untied, {}, digits)
    return made


@pytest.mark.parametrize("case", [*CASES, *SHAPES, *EXPERTS, "a block number of forty digits"])
def test_every_verb_says_it_in_one_line(here: Any, files: dict[str, Path], case: str, tmp_path: Path) -> None:
    path = files[case]
    runs: list[list[str]] = [
        ["run", str(path), "-p", "a", "-n", "1", "--engine", "cpu"],
        ["trace", str(path), "--tokens", "1,2", "-o", str(tmp_path / "trace")],
        ["check", str(path)],
    ]
    codes = set()
    for command in runs:
        done = here(*command)
        codes.add(done.returncode)
        if done.returncode:
            one_line(done)
    assert 2 in codes or case in HARMLESS
    done = here("inspect", path)
    assert done.returncode == 0 or one_line(done) is None


def test_wide_keys_do_not_widen_the_page(assay: Bounded, tmp_path: Path) -> None:
    """1.5 MB of keys: one of 60,000 characters, and 50,000 short ones that were each padded to its width."""
    keys = {"k" * 60_000: 1} | {f"short.{i}": i for i in range(50_000)}
    path = tiny.make(tmp_path / "wide.gguf", metadata=keys)
    done = assay("inspect", path, memory=300 << 20)
    assert done.returncode == 0, done.stderr[-500:]
    assert len(done.stdout) < 16 << 20
    assert "short.49999" in done.stdout


def test_names_reach_no_terminal(assay: Bounded, tmp_path: Path) -> None:
    """Escape sequences in tensor names, keys, values, the template's complaint and the answer itself."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    template = "{{ raise_exception('no " + evil + "') }}"
    source = tiny.make(tmp_path / "a.gguf", template=template, metadata={f"k{evil}": f"v{evil}", "general.name": evil})
    path = remade(tmp_path / "b.gguf", source, {}, {"output_norm.weight": f"o{evil}"})
    for command in (
        ["inspect", path, "--tensors"],
        ["inspect", path, "--graph"],
        ["run", source, "-p", "hi"],
        ["run", path, "-p", "hi"],
        ["quantize", path, "--type", "Q8_0", "--dry-run"],
        ["quantize", path, tmp_path / "q.gguf", "--type", "Q8_0"],
        ["trace", path, "--tokens", "1", "-o", tmp_path / f"t{evil}" / "x"],
        ["diff", source, tmp_path / f"{evil}.jsonl"],
    ):
        done = assay(*command)
        assert "Traceback" not in done.stderr, done.stderr[-1500:]
        shown = done.stdout + done.stderr
        assert not any(c in shown for c in "\x1b\x07\x9b"), (command[0], shown[-500:])
