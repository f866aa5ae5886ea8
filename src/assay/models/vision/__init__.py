"""Vision towers: from an mmproj file to a graph, as `models` does for language models.

`load_tower` reads `clip.projector_type` and calls the projector's builder (`siglip.py`, `qwen_vl.py`, …), which is made
of the parts in `vit.py`. `picture_inputs.py` gives what depends on a picture's size. Touch this package to add a
projector: a builder, a row of inputs, a row of keys.
"""

from assay.models.vision.projector_keys import is_tower
from assay.models.vision.tower import Tower, load_tower

__all__ = ["Tower", "is_tower", "load_tower"]
