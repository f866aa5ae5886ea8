"""Writes an assay dump (JSON lines). Open once, then call `tensor` wherever a value is known."""

import json
import sys

import numpy as np


class Dump:
    def __init__(self, path, engine, tokens):
        self.out = open(path, "w")  # noqa: SIM115 (closed with the process)
        self._line({"assay_dump": 1, "engine": engine, "tokens": [int(t) for t in tokens]})

    def tensor(self, name, values):
        """Row-major: slowest axis first, e.g. [tokens, heads, head_dim]. NaN becomes null."""
        values = np.asarray(values, np.float32)
        flat = [float(v) if np.isfinite(v) else None for v in values.ravel()]
        self._line({"name": name, "shape": values.shape, "values": flat})

    def _line(self, item):
        print(json.dumps(item), file=self.out, flush=True)


if __name__ == "__main__":
    dump = Dump(sys.argv[1] if len(sys.argv) > 1 else "dump.jsonl", "example-python", [1, 450])
    dump.tensor("embd", [[0.1, -2.5, 3e-7], [4.0, 5.25, -6.0]])
