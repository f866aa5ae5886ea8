"""Mistakes of engines that see: pixels, patches and positions, the tower, the projector, the prompt around the rows.

A picture is computed in stages, and a mistake changes one of them:

    pixel_habits.py      how a picture becomes pixels: a record of choices, one row a mistake
    patch_edits.py       which pixels form a row of the tower, and which positions it gets
    tower_edits.py       the nodes of the tower's graph
    projector_edits.py   how rows are merged and projected
    prompt_edits.py      the rows among the tokens of the language model

`picture_plants.py` has the types. Importing this package registers the mistakes in `PICTURE_PLANTS`; their rows are
prose in `catalogue/` like those of all faults. Touch this package to add a mistake of a picture's way.
"""

from __future__ import annotations

from assay.verify.faults.vision import patch_edits, pixel_habits, projector_edits, prompt_edits, tower_edits
from assay.verify.faults.vision.picture_plants import PICTURE_PLANTS, PictureVariant, PlantedTower, plant_tower
from assay.verify.faults.vision.prompt_edits import PROMPT_PLANTS, PromptHabits

__all__ = ["PICTURE_PLANTS", "PROMPT_PLANTS", "PictureVariant", "PlantedTower", "PromptHabits", "plant_tower"]

_PLANTING = (pixel_habits, patch_edits, tower_edits, projector_edits, prompt_edits)
