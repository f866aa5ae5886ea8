"""A tower: an mmproj file, its keys and the graph that its projector's builder makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph
from assay.models.vision import class_row, gemma4v, pixtral, qwen_vl, siglip
from assay.models.vision.projector_keys import ProjectorKeys, read_projector_keys
from assay.models.vision.tower_file import tower_file
from assay.models.vision.vit import TowerBuilder

BUILDERS: dict[str, Callable[[TowerBuilder], Graph]] = {
    "gemma3": siglip.gemma3,
    "qwen2vl_merger": qwen_vl.qwen2vl,
    "qwen2.5vl_merger": qwen_vl.qwen25vl,
    "qwen3vl_merger": qwen_vl.qwen3vl,
    "idefics3": siglip.idefics3,
    "gemma4v": gemma4v.gemma4v,
    "lfm2": siglip.lfm2,
    "pixtral": pixtral.pixtral,
    "internvl": class_row.internvl,
    "mlp": class_row.mlp,
}
MROPE = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")
CAUSAL_GEMMA4 = (1536, 2560)  # widths of E2B and E4B, whose image rows are causal like text


@dataclass(frozen=True)
class Tower:
    """Weights, graph and keys of a tower, which an engine needs to encode pictures."""

    file: GGUFFile  # tensors as the graph names them
    keys: ProjectorKeys
    graph: Graph

    @property
    def width(self) -> int:
        """Numbers in a row: the width of the language model, times 1 + the parts of deepstack."""
        return int(self.graph.shapes[self.graph.output][-1])

    @property
    def parts(self) -> int:
        """Further parts of a row, which the language model adds to its first layers."""
        return sum(node.name.startswith("deepstack_out-") for node in self.graph)

    @property
    def table_rows(self) -> int:
        """Rows of the table of positions; 0 for a tower without a table."""
        return self.graph.weights.get("v.position_embd.weight", (0,))[0]

    @property
    def sees_itself(self) -> bool:
        """Whether the rows of an image attend to each other both ways in the language model."""
        projector = self.keys.projector
        return projector == "gemma3" or (projector == "gemma4v" and self.width not in CAUSAL_GEMMA4)

    @property
    def mrope(self) -> bool:
        """Whether a row's position has several numbers."""
        return self.keys.projector in MROPE


def load_tower(file: GGUFFile, min_tokens: int | None = None, max_tokens: int | None = None) -> Tower:
    """Read the keys, build the graph and check it against the tensors of the file."""
    keys = read_projector_keys(file.metadata, str(file.path), min_tokens, max_tokens)
    view = tower_file(file, keys)
    try:
        graph = BUILDERS[keys.projector](TowerBuilder(keys, view)).check()
    except AssayError as error:
        text = str(error)
        raise AssayError(text if text.startswith(f"{file.path}: ") else f"{file.path}: {text}") from error
    return Tower(view, keys, graph)
