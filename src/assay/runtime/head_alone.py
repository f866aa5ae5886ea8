"""Draft heads in files of their own: the draft block of a model's architecture without the layers of the model.

llama.cpp writes such files beside models (`nextn_predict_layers`, and no block 0). The head is the one of
`models/draft_head.py`; what the file lacks of it, such as the vocabulary matrix, is the model's.
"""

from __future__ import annotations

from collections.abc import Collection

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.models import Model, load
from assay.models.draft_head import HIDDEN
from assay.runtime.head_draft import DraftHead, joined_with

_ROWS = "result_norm"


def head_alone(file: GGUFFile, model: Model, name: str) -> DraftHead:
    """The head in `file` for a model. `name` is what the user gave to --draft."""
    where, arch = f"--draft {name}", file.get_str("general.architecture")
    if arch != model.hparams.arch:
        raise AssayError(f"{where}: is a draft head of {arch} (found a model of {model.hparams.arch})")
    try:
        whole = load(_with(file, model, model.file.tensors, where))
    except AssayError as error:
        raise AssayError(f"{where}: is the head of another model ({error})") from error
    if whole.draft is None:
        raise AssayError(f"{where}: its draft head cannot be run ({whole.draft_fault})")
    sizes = [(hp.n_layer, hp.n_embd, hp.n_vocab) for hp in (whole.hparams, model.hparams)]
    if sizes[0] != sizes[1]:
        found, expected = ("{} layers, {} wide, {} tokens".format(*size) for size in sizes)
        raise AssayError(f"{where}: is the head of another model (found {found}, expected {expected})")
    own = Model(_with(file, model, whole.draft.weights, where), whole.hparams, whole.draft)
    return DraftHead(name, whole.draft, (_ROWS,), model.hparams.n_embd, HIDDEN, _ROWS, own)


def _with(file: GGUFFile, model: Model, names: Collection[str], where: str) -> GGUFFile:
    """The file with these tensors, those that it lacks from the model's file."""
    return joined_with(file, model.file, {name: name for name in names if name not in file.tensors}, where)
