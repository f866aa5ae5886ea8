"""Reads the table of ExecuTorch's `Inspector.calculate_numeric_gap`, saved as CSV or TSV.

A row has the operators and the values of the eager model and of the runtime; the runtime's are judged. Operators have
no module in their names, so the values say which node each row is.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from assay.errors import AssayError
from assay.system.text_files import read_text
from assay.verify.dumps.formats.array_dumps import from_arrays
from assay.verify.dumps.formats.numpy_files import Arrays
from assay.verify.dumps.formats.tensor_text import printed_tensor
from assay.verify.dumps.observation import Dump

MAX_TABLE = 256 << 20  # bytes
VALUES, NAMES = "runtime_intermediate_output", "runtime_ops"


def is_inspector_table(head: bytes) -> bool:
    line = head.splitlines()[0] if head else b""
    return VALUES.encode() in line and (b"," in line or b"\t" in line)


def read_inspector_table(path: Path) -> Dump:
    """The runtime's values, named after their operators."""
    if path.stat().st_size > MAX_TABLE:
        raise AssayError(f"{path}: {path.stat().st_size} bytes (expected at most {MAX_TABLE}); save fewer rows")
    text = read_text(path, lenient=True)
    csv.field_size_limit(MAX_TABLE)
    first = text.partition("\n")[0]
    arrays: Arrays = {}
    cut = 0
    try:
        rows = list(csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in first else ","))
    except csv.Error as error:
        raise AssayError(f"{path}: not a table ({str(error).lower()})") from None
    for number, row in enumerate(rows):
        said = row.get(VALUES) or ""
        printed = printed_tensor(said)
        if printed is None or not printed.whole:
            cut += "..." in said
            continue
        names = re.findall(r"[\w.]+", row.get(NAMES) or "") or ["row"]
        name = names[-1] if names[-1] not in arrays else f"{names[-1]} (row {number})"
        value = np.array([float(t) for t in printed.texts]).reshape(printed.shape)
        arrays[name] = printed.shape, (lambda value=value: value)  # type: ignore[misc]
    if not arrays:
        why = "its tensors are printed with `...`" if cut else "no row has the values of a tensor"
        raise AssayError(
            f"{path}: {why}; call torch.set_printoptions(threshold=10**9) before you save the table, or save the "
            "tensors of the column with torch.save"
        )
    notes = (f"{cut} rows are printed with `...` and were left out",) if cut else ()
    return from_arrays(path, arrays, notes)
