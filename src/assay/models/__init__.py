"""Hyper-parameters and a graph builder per architecture; `load` picks the builder by the file's own name for it."""

from assay.models.hparams import HParams
from assay.models.model import Model, load

__all__ = ["HParams", "Model", "load"]
