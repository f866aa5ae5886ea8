"""What a server's requests compile: nothing, once the engine is warm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cuda import CudaEngine
from assay.engines.cuda.device import Launch
from assay.engines.cuda.kernel_table import MODULES
from assay.engines.cuda.shim import Shim
from assay.engines.cuda.sources import Kernels
from assay.engines.cuda.warm_up import of_all_sizes
from assay.gguf import open_file
from assay.models import load
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job
from assay.text import Tokenizer
from tests import tiny
from tests.engines import on_cuda

IDS = np.random.default_rng(5).integers(259, 290, 600).astype(np.int32)


class Recorder(Shim):
    """Counts units of machine code, as if each had to be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[str] = set()
        self._kernels = Kernels("sm_90")

    def prepare(self, kernels: Iterable[str]) -> None:
        self.begun |= {self._kernels.unit(kernel) for kernel in kernels}

    def launch(self, launch: Launch, early: bool) -> None:
        self.prepare([launch.kernel])
        super().launch(launch, early)


CASES: dict[str, dict[str, Any]] = {
    "llama": {"type": "Q4_K", "n_layer": 1, "n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2},
    "experts": {"type": tiny.with_experts("Q8_0"), "n_layer": 1, "n_embd": 256, "n_expert": 5},
}


@pytest.mark.skipif(on_cuda.ON_GPU, reason="counts what the shim is asked for")
@pytest.mark.parametrize("precision", ["fast", "mixed"])
@pytest.mark.parametrize("name", CASES)
def test_requests_of_every_kind_compile_nothing_after_the_warm_up(tmp_path: Path, name: str, precision: str) -> None:
    model = load(open_file(tiny.make(tmp_path / "m.gguf", n_ctx=512, **CASES[name])))
    recorder = Recorder()
    engine = CudaEngine(model, precision=precision, n_pages=64, device=recorder)
    engine.warm_up()
    warm = set(recorder.begun)
    scheduler = Scheduler(engine, Tokenizer.from_gguf(model.file), n_ctx=512, chunk=128)
    ids = tuple(int(i) for i in IDS)
    drawn = SamplerParams(temp=1.0, top_k=20, seed=1)
    kinds = {
        "one stream": [Job(ids[:5], GREEDY, 3, ignore_eos=True)],
        "a long prompt": [Job(ids[:300], GREEDY, 2, ignore_eos=True)],
        "streams": [Job((*ids[:3], 260 + i), drawn, 3, ignore_eos=True) for i in range(12)],
        "log-probabilities": [Job(ids[:40], GREEDY, 2, logprobs=3, prompt_logprobs=2, ignore_eos=True)],
        "embeddings": [Job(ids[10 : 12 + i], keep=(model.graph.embedding,)) for i in range(3)],
        "a trace": [Job(ids[:9], keep=tuple(n.name for n in model.graph if "S" not in model.graph.shapes[n.name]))],
    }
    for kind, jobs in kinds.items():
        scheduler.add([scheduler.make(job, lambda update: None) for job in jobs])
        while scheduler.busy:
            scheduler.step()
        assert recorder.begun == warm, kind
    engine.forward([Chunk(IDS[:9], 0, np.arange(1, dtype=np.int32), "all")], [n.name for n in model.graph])
    assert recorder.begun == warm, "a whole trace"


def test_other_sizes_of_a_kernel() -> None:
    assert of_all_sizes(["product_8", "map"]) == {"map", *MODULES["gemm_few"], *MODULES["gemm_many"]}
    found = of_all_sizes(["turns_8_q4_k"])
    assert {"turns_64_q4_k", "tensor_256", "tensor_64_alone_q4_k"} <= found
    assert "turns_8_q6_k" not in found and "turns_8_q4_k_q6_k" not in found
