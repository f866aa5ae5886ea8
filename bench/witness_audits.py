"""Audits of other people's engines, which serve the claimed file honestly.

    python bench/audits.py --model smollm2 --engine openvino

Engines that give log-probabilities of their own (mistral.rs) are asked through their own interface; the others compute
the logits of an `OwnServer`. Torch multiplies bfloat16 at 0.1 GFLOP/s on a processor without instructions for it. There
the products of linear layers are computed in float32 from the bfloat16 values and rounded to bfloat16, as a unit for it
with float32 sums does.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.verify.endpoint.own_server import Habits, OwnServer

from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime import hub
from assay.text import Tokenizer
from assay.verify.endpoint.audit_findings import AuditOptions
from assay.verify.endpoint.audit_report import headline
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.client import Client
from assay.verify.witness.engines_by_name import open_engine, open_talker, talkers


class WitnessServer(OwnServer):
    """Logits of another engine."""

    def __init__(self, model: Model, engine: Any, seed: int) -> None:
        super().__init__(model, Habits(), seed)
        self._engine: PagedEngine = engine

    def _logits(self, ids: list[int], kind: Any) -> NDArray[Any]:
        pages = np.arange(pages_for(len(ids)), dtype=np.int32)
        return self._engine.forward([Chunk(np.asarray(ids, np.int32), 0, pages, "all")])[0].logits


def multiply_in_float32(net: Any) -> None:
    """Linear layers of a torch model in bfloat16: products and sums in float32, the result rounded to bfloat16."""
    import torch

    def forward(layer: Any) -> Any:
        weight = layer.weight.detach().float()
        return lambda x: torch.nn.functional.linear(x.float(), weight).to(torch.bfloat16)

    for layer in net.modules():
        if isinstance(layer, torch.nn.Linear):
            assert layer.bias is None
            layer.forward = forward(layer)


def run(name: str, model_name: str, seeds: range, precision: str | None) -> None:
    model = load(open_file(hub.resolve(model_name)))
    tokenizer = Tokenizer.from_gguf(model.file)
    talks = name in talkers()
    engine: Any = open_talker(name, model) if talks else open_engine(name, model, threads=1, precision=precision)
    if (name, precision) == ("transformers", "bf16") and "bf16" not in Path("/proc/cpuinfo").read_text():
        multiply_in_float32(engine._net)
    for seed in seeds:
        started = time.process_time()
        server = None if talks else WitnessServer(model, engine, seed)
        client = Client(name, tokenizer, ask=engine.ask if server is None else server.ask)
        found = audit_endpoint(model, client, AuditOptions(seed=seed, threads=1), progress=lambda _: None)
        took = time.process_time() - started
        print(
            f"| {name} | {seed} | {found.verdict} | {found.places} | {found.requests} | {found.distance:.3f} | "
            f"{found.noise:.3f} | {took:.0f} | {headline(found)} | {'; '.join(found.notes)} |", flush=True,
        )  # fmt: skip
    engine.close()
