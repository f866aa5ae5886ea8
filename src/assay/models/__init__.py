"""From a GGUF file to a graph: hyper-parameters, and one builder for each architecture.

`load` reads `general.architecture`, finds the builder in `catalogue.py` and checks the graph against the tensors.
Builders are small files (`llama.py`, `gemma.py`, …) made of the parts in `blocks.py`; `hparams.py` and `arch_keys.py`
read and check the metadata. Touch this package to add an architecture: one builder and one row of the catalogue.
"""

from assay.models.hparams import HParams
from assay.models.model import Model, load

__all__ = ["HParams", "Model", "load"]
