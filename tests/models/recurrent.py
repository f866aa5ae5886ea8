"""Golden models with a state: llama.cpp's values of a prompt, of two further tokens one by one, and of a long prompt.

They lie in the reference data, 0.3 to 0.7 MB each; one is copied into tests/data/arch, so that a checkout alone tests
something. `Calls` runs the reference engine as llama.cpp was run, and compares every recorded value.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from assay.engines.contract import Chunk, Engine, pages_for
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import Model, load
from tests.models.golden import nmse, path

# Architectures whose layers keep a state, and variants of their files.
STATEFUL = (
    "lfm2", "lfm2moe", "qwen35", "qwen35-mtp", "qwen35moe", "qwen35moe-mtp", "qwen3next", "qwen3next-mtp",
    "qwen3next-old", "mamba2", "granitehybrid", "granitehybrid-moe", "nemotron_h", "nemotron_h_moe",
    "nemotron_h_moe-mtp", "falcon-h1", "kimi-linear", "mamba", "jamba", "rwkv7", "rwkv6",
)  # fmt: skip
DRAFTS = tuple(name for name in STATEFUL if name.endswith("-mtp"))
# Attention alone, recorded in the same form.
OTHERS = (
    "minimax-m2", "ernie4_5-moe", "hunyuan-moe", "bailingmoe2", "apertus", "dots1", "arcee", "mistral4", "gemma3n",
    "modern-bert", "jina-bert-v3", "nomic-bert-moe",
)  # fmt: skip
NAMES = (*STATEFUL, *OTHERS)

# What llama.cpp records inside an operation that is one node here, or under a second name.
INSIDE = {"ffn_moe_group_scores-1", "result_output_scaled_1", "result_output_tanh", "result_output_proj-2"}
_PLAIN = ("tokens", "positions", "n_ctx", "long_", "mtp/")


class Calls:
    """A golden model and its recorded calls: the prompt is call 0, then two tokens one by one."""

    def __init__(self, name: str) -> None:
        self.recorded = np.load(path(name).with_suffix(".npz"))
        self.model: Model = load(open_file(path(name)), int(self.recorded["n_ctx"]))
        self.pages = np.arange(pages_for(150), dtype=np.int32)

    @property
    def ends(self) -> list[str]:
        """The end of the names of each call."""
        return [end for end in ("", "@1", "@2") if f"tokens{end}" in self.recorded.files]

    def names(self, end: str) -> list[str]:
        """The recorded nodes of a call."""
        found = [n for n in self.recorded.files if n.endswith(end) and ("@" in n) == bool(end)]
        return [n.removesuffix(end) for n in found if not n.startswith(_PLAIN)]

    def missing(self) -> set[str]:
        """Recorded nodes that the graph does not have."""
        return {name for end in self.ends for name in self.names(end) if name not in self.model.graph} - INSIDE

    def chunk(self, end: str, start: int) -> Chunk:
        tokens, at = (self.recorded[f"{key}{end}"].astype(np.int32) for key in ("tokens", "positions"))
        return Chunk(tokens, start, self.pages, "all", at)

    def errors(self, engine: Engine | None = None) -> dict[str, float]:
        """NMSE of every recorded value of every call, from the tokens alone; for indices, how many differ."""
        engine, found, start = engine or ReferenceEngine(self.model, n_pages=len(self.pages)), {}, 0
        for end in self.ends:
            keep = [name for name in self.names(end) if name in self.model.graph]
            chunk = self.chunk(end, start)
            for name, value in engine.forward([chunk], keep)[0].nodes.items():
                golden = self.recorded[name + end]
                if value.dtype.kind == "i":
                    found[name + end] = float(np.count_nonzero(value.ravel() != golden.ravel()))
                else:
                    found[name + end] = nmse(value.ravel(), golden.ravel().astype(np.float64))
            start = chunk.end
        return found

    def long_error(self, engine: Engine | None = None) -> float:
        """NMSE of the recorded rows of a prompt of 150 tokens, around the borders of chunks of other engines."""
        tokens = self.recorded["long_tokens"].astype(np.int32)
        engine = engine or ReferenceEngine(self.model, n_pages=len(self.pages))
        logits = engine.forward([Chunk(tokens, 0, self.pages, "all")])[0].logits
        return nmse(logits[self.recorded["long_rows"]], self.recorded["long_result_output"].astype(np.float64))

    def draft_errors(self, engine: Engine | None = None) -> dict[str, float]:
        """NMSE of the draft head's recorded values over the prompt, given llama.cpp's hidden rows."""
        assert self.model.draft is not None
        engine = engine or ReferenceEngine(self.model, n_pages=len(self.pages), graph=self.model.draft)
        rows = {"mtp_hidden": self.recorded["mtp/hidden"].astype(engine.dtype)}
        names = [n.removeprefix("mtp/") for n in self.recorded.files if n.startswith("mtp/") and n != "mtp/hidden"]
        chunk = Chunk(self.recorded["tokens"].astype(np.int32), 0, self.pages, "all", rows=rows)
        found = engine.forward([chunk], names)[0].nodes
        return {name: nmse(found[name], self.recorded[f"mtp/{name}"].astype(np.float64)) for name in names}


@cache
def calls(name: str) -> Calls:
    return Calls(name)
