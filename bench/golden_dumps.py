"""Is an unmodified llama.cpp ever called wrong? Its own values of every golden model, all nodes, judged as any dump.

python bench/golden_dumps.py                 # every file of `$ASSAY_SHARED/data/arch` and `recurrent`
python bench/golden_dumps.py gemma2 mamba2   # these

Of a model with recorded calls the prompt is judged. A line each: the verdict, the nodes, the first wrong one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.load import load_dump
from assay.verify.judge.verdict import judge

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("ASSAY_SHARED", ROOT.parent / "shared")) / "data"


def main() -> None:
    wanted = set(sys.argv[1:])
    alarms = count = 0
    for recorded in sorted(p for name in ("arch", "recurrent") for p in (DATA / name).glob("*.npz")):
        if wanted and recorded.stem not in wanted:
            continue
        values = np.load(recorded)
        model = load(open_file(recorded.with_suffix(".gguf")), int(values["n_ctx"]))
        kept = {n: values[n] for n in values.files if n in model.graph or n in ("tokens", "positions")}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dump.npz"
            np.savez(path, **kept)
            found = judge(model, load_dump(path, model), cache=False)
            count += 1
            alarms += found.first_wrong is not None
            first = found.first_wrong.name if found.first_wrong is not None else ""
            print(f"{recorded.stem:20} {found.verdict:8} {len(found.nodes):4} nodes  {first}", flush=True)
    print(f"{count} models, {alarms} called wrong")


if __name__ == "__main__":
    main()
