"""Walks with experts, recurrences and single operations (walk_all.cu, walk_few_all.cu): one kernel, the cpu's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine, lower_walk, schedule_experts, schedule_products
from assay.engines.cuda.abi.enumerations import StepKind
from assay.engines.cuda.device import Device, Launch
from assay.engines.cuda.shim import Shim
from assay.gguf import open_file
from assay.gguf.writer import write
from assay.models import Model, load
from assay.models.catalogue import ARCHITECTURES, metadata, tensor_shapes
from tests.engines import bits
from tests.engines.on_cuda import ON_GPU, device, pages

HEADS: dict[str, Any] = {"n_embd_head": 32, "n_embd_head_v": 32, "n_ff_shexp": 64}
# Sizes whose rows end within a tile and within a unit of 256 columns, and more experts than lanes of a warp.
UNEVEN: dict[str, Any] = {**HEADS, "n_embd": 288, "n_expert": 40, "n_expert_used": 3, "n_ff_exp": 96}
WHOLE: dict[str, Any] = {**HEADS, "n_head": 8, "n_embd": 256, "n_ff_exp": 256, "n_ff": 256, "n_ff_shexp": 256}


def q4_k_m(name: str) -> str:
    return "Q6_K" if "down" in name or "attn_v" in name or "ssm_out" in name else "Q4_K"


def mxfp4(name: str) -> str:
    return "MXFP4" if "exps" in name else "Q8_0"


def make(path: Path, arch: str, type_of: Callable[[str], str], sizes: dict[str, Any]) -> Model:
    """The catalogue's example with other sizes and keys; routers are floats, as in published files."""
    row, sizes = ARCHITECTURES[arch], dict(sizes)
    keys = {**row.keys, **sizes.pop("keys", {})}
    row = replace(row, sizes=replace(row.sizes, **sizes), keys=keys)
    rng = np.random.default_rng(1)

    def kind(name: str, shape: tuple[int, ...]) -> str:
        floats = "norm" in name or "ffn_gate_inp" in name or "conv1d" in name or not name.endswith(".weight")
        return "F32" if floats or len(shape) < 2 or shape[-1] % 32 else type_of(name)

    tensors = [bits.tensor(name, shape, kind(name, shape), rng) for name, shape in tensor_shapes(row).items()]
    tokenizer = {"tokenizer.ggml.model": "no_vocab", "tokenizer.ggml.token_type_count": 2}
    write(path / "model.gguf", {**metadata(row), **tokenizer}, tensors)
    return load(open_file(path / "model.gguf"))


def same(model: Model, n: int = 5, gpu: Device | None = None) -> list[str]:
    """Token by token the cpu engine's logits; the kernels of a token."""
    ids = bits.IDS[:n] % model.hparams.n_vocab
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=gpu or device())
    expected = cpu.forward([Chunk(ids, 0, pages(0, n), "all")])[0].logits
    assert np.isfinite(expected).all()
    for i in range(n):
        found = cuda.forward([Chunk(ids[i : i + 1], i, pages(0, n))])[0].logits[0]
        assert np.array_equal(found, expected[i]), i
    (program,) = (p for p in cuda._programs.values() if p.shape.tokens == 1)
    kernels = [launch.kernel for launch in program.launches]
    cuda.close()
    return kernels


def same_together(model: Model, streams: int, gpu: Device | None = None, n: int = 2) -> list[str]:
    """Tokens of several sequences at a time have the cpu engine's logits; the kernels of a step."""
    ids = (np.arange(streams * n, dtype=np.int32).reshape(streams, n) * 37 + 5) % model.hparams.n_vocab
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=gpu or device())
    expected = [r.logits for r in cpu.forward([Chunk(row, 0, pages(i, n), "all") for i, row in enumerate(ids)])]
    for i in range(n):
        found = cuda.forward([Chunk(row[i : i + 1], i, pages(k, n)) for k, row in enumerate(ids)])
        for k in range(streams):
            assert np.array_equal(found[k].logits[0], expected[k][i]), (i, k)
    program = [p for p in cuda._programs.values() if p.shape.tokens > 1][-1]  # the first step has no keys before it
    kernels = [launch.kernel for launch in program.launches]
    cuda.close()
    return kernels


def is_one_kernel(kernels: list[str], formats: str, kind: str = "walk_all") -> bool:
    return [k for k in kernels if k.startswith(("walk", "product", "attend", "map"))] == [f"{kind}_{formats}"]


EXPERTS = {
    "qwen3moe": ("q8_0", lambda _: "Q8_0", UNEVEN),
    "qwen3moe, Q4_K_M": ("q4_k_q6_k", q4_k_m, {**WHOLE, "n_ff_exp": 512}),
    "gpt-oss": ("mxfp4_q8_0", mxfp4, {**UNEVEN, "n_embd": 320}),
    "qwen3moe, many experts": ("q8_0", lambda _: "Q8_0", {**HEADS, "n_expert": 136, "n_ff_exp": 32}),
    "olmoe": ("q8_0", lambda _: "Q8_0", HEADS),
    "qwen2moe": ("q8_0", lambda _: "Q8_0", HEADS),
    "granitemoe": ("q8_0", lambda _: "Q8_0", HEADS),
    "minimax-m2": ("q8_0", lambda _: "Q8_0", HEADS),
    "ernie4_5-moe": ("q8_0", lambda _: "Q8_0", HEADS),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_a_token_of_a_model_with_experts_is_one_kernel(tmp_path: Path, name: str) -> None:
    formats, type_of, sizes = EXPERTS[name]
    gpu = device()
    if isinstance(gpu, Shim) and "many" in name:
        gpu.multiprocessors = 6  # the router's rows of two would leave the ring too little memory
    assert is_one_kernel(same(make(tmp_path, name.split(",")[0], type_of, sizes), gpu=gpu), formats)


# Streams, multiprocessors of the shim, and sizes: blocks with items of several experts, of one, and of none; experts
# with one token and with more than four.
TOGETHER: dict[str, tuple[int, int, dict[str, Any]]] = {
    "qwen3moe": (8, 2, {}),
    "qwen3moe, Q4_K_M": (8, 5, {"n_expert": 3}),
    "gpt-oss": (5, 7, {"n_expert": 4}),
    "qwen3moe, many experts": (2, 6, {}),
    "qwen2moe": (2, 3, {}),
    "minimax-m2": (2, 24, {}),
    "ernie4_5-moe": (4, 2, {}),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_step_of_several_sequences_with_experts_is_one_kernel(tmp_path: Path, name: str) -> None:
    formats, type_of, sizes = EXPERTS[name]
    streams, processors, more = TOGETHER[name]
    gpu = device()
    if isinstance(gpu, Shim):
        gpu.multiprocessors = processors
    model = make(tmp_path, name.split(",")[0], type_of, {**sizes, **more})
    assert is_one_kernel(same_together(model, streams, gpu), formats, "walk_few_all")


@pytest.mark.parametrize("processors", [3, 40])
@pytest.mark.parametrize("name", ["qwen3moe", "qwen3moe, Q4_K_M", "gpt-oss"])
def test_two_blocks_share_the_experts_of_a_row(
    tmp_path: Path, name: str, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down in two halves: one has a part of the sum, which the other waits for, in the same block or in another."""
    monkeypatch.setattr(schedule_experts, "HANDING_ON", -1000)
    formats, type_of, sizes = EXPERTS[name]
    gpu = device()
    if isinstance(gpu, Shim):
        gpu.multiprocessors = processors
    model = make(tmp_path, name.split(",")[0], type_of, {**sizes, "n_expert_used": 4})
    assert is_one_kernel(same(model, 2, gpu), formats)


# The delta rule's heads of published models, which two steps compute with all around them.
OF_128: dict[str, Any] = {
    "ssm.state_size": 128, "ssm.time_step_rank": 4, "ssm.inner_size": 512, "ssm.group_count": 2, "ssm.conv_kernel": 4,
}  # fmt: skip
RECURRENT = {
    "qwen35": ("q8_0", lambda _: "Q8_0", HEADS),
    "qwen35, Q4_K_M": ("q4_k_q6_k", q4_k_m, {**WHOLE, "keys": {"ssm.inner_size": 256, "ssm.state_size": 64}}),
    "qwen35, heads of 128": ("q8_0", lambda _: "Q8_0", {**HEADS, "keys": OF_128}),
    "qwen35, heads of 128, Q4_K_M": ("q4_k_q6_k", q4_k_m, {**WHOLE, "keys": {**OF_128, "ssm.group_count": 4}}),
    "qwen35moe, heads of 128": ("q8_0", lambda _: "Q8_0", {**HEADS, "keys": OF_128}),
    "qwen35moe": ("q8_0", lambda _: "Q8_0", HEADS),
    "lfm2": ("q8_0", lambda _: "Q8_0", HEADS),
    "lfm2moe": ("q8_0", lambda _: "Q8_0", HEADS),
    "mamba2": ("q8_0", lambda _: "Q8_0", HEADS),
    "granitehybrid": ("q8_0", lambda _: "Q8_0", HEADS),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_token_of_a_model_with_a_state_is_one_kernel(tmp_path: Path, name: str) -> None:
    formats, type_of, sizes = RECURRENT[name]
    assert is_one_kernel(same(make(tmp_path, name.split(",")[0], type_of, sizes)), formats)


@pytest.mark.skipif(ON_GPU, reason="the device is a shim, which compiles nothing")
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_layer_with_the_delta_rule_has_few_steps(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the products two steps; the shared expert's row and its gate are no steps either."""
    kinds: list[list[StepKind]] = []
    lowered = lower_walk._link

    def link(r: Any, table: Any, *rest: Any) -> None:
        kinds.append([StepKind(step.kind) for step in table])
        lowered(r, table, *rest)

    monkeypatch.setattr(lower_walk, "_link", link)
    model = make(tmp_path, name, lambda _: "Q8_0", {**HEADS, "keys": {**OF_128, "full_attention_interval": 3}})
    CudaEngine(model, n_pages=16, device=device()).close()
    product, experts = StepKind.PRODUCT, StepKind.EXPERT_ROWS
    routed = [StepKind.FLOAT_ROWS, product, product, experts, experts]
    ffn = routed if name == "qwen35moe" else [product, product]
    assert kinds[0][: 4 + len(ffn)] == [product, StepKind.DELTA, StepKind.GATED_NORMS, product, *ffn]


@pytest.mark.parametrize("name", ["qwen35, Q4_K_M", "qwen3moe"])
def test_a_product_with_many_rows_is_cut(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the head of a large vocabulary, whose partial sums would leave the ring too little memory."""
    monkeypatch.setattr(schedule_products, "MOST_SUMS", 1024)
    formats, type_of, sizes = {**EXPERTS, **RECURRENT}[name]
    assert is_one_kernel(same(make(tmp_path, name.split(",")[0], type_of, sizes), 3), formats)


class Strict(Shim):
    """A shim that, as a driver may, loads no kernel and allocates nothing while a graph is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[str] = set()
        self.captures = 0
        self.capturing = False

    def ready(self, kernels: Iterable[str]) -> None:
        assert not self.capturing
        self.kernels |= {*kernels}

    def alloc(self, size: int, what: str) -> int:
        assert not self.capturing, what
        return super().alloc(size, what)

    def launch(self, launch: Launch, early: bool) -> None:
        assert not self.capturing or launch.kernel in self.kernels, launch.kernel
        super().launch(launch, early)

    def capture(self, record: Callable[[], None]) -> Any:
        def watched() -> None:
            self.capturing, self.captures = True, self.captures + 1
            record()
            self.capturing = False

        return super().capture(watched)


@pytest.mark.skipif(ON_GPU, reason="the device is a shim")
def test_nothing_is_loaded_while_a_graph_is_captured(tmp_path: Path) -> None:
    gpu = Strict()
    same(make(tmp_path, "lfm2", lambda _: "Q8_0", HEADS), 2, gpu)
    assert gpu.captures == 2


@pytest.mark.skipif(ON_GPU, reason="weather is the shim's")
@pytest.mark.parametrize("weather", [1, 2, 3])
@pytest.mark.parametrize("name", ["qwen3moe, Q4_K_M", "gpt-oss", "qwen35moe"])
def test_nothing_is_right_by_luck(tmp_path: Path, name: str, weather: int) -> None:
    formats, type_of, sizes = {**EXPERTS, **RECURRENT}[name]
    model = make(tmp_path, name.split(",")[0], type_of, sizes)
    assert is_one_kernel(same(model, 3, Shim(weather)), formats)
    if name in EXPERTS:
        assert is_one_kernel(same_together(model, 3, Shim(weather)), formats, "walk_few_all")
