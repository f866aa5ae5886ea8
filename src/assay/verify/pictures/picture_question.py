"""A dump of a picture as the search sees it: the tower, the picture, what was dumped, and the definition's stages.

Plain data that the passes of `diagnose_picture` share. Nothing in it changes during a search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.engines.reference.weights import Weights
from assay.models.vision.tower import Tower
from assay.verify.faults.vision import PictureVariant
from assay.verify.pictures.picture_dump import PictureDump
from assay.vision.preprocess import PreparedPicture, preprocess
from assay.vision.resize import Bytes

Place = tuple[int, str]  # an image and a node


@dataclass(frozen=True)
class PictureQuestion:
    """What is asked: which mistake gives this dump of this picture?"""

    tower: Tower
    picture: Bytes
    dump: PictureDump
    end: float  # of the search, by `time.monotonic`
    say: Callable[[str], None]

    @cached_property
    def prepared(self) -> PreparedPicture:
        """The definition's stages."""
        return preprocess(self.tower.keys, self.picture)

    @cached_property
    def weights(self) -> Weights:
        return Weights(self.tower.file)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The values that sentences about a mistake may use."""
        keys, plan = self.tower.keys, self.prepared.plan
        scaling = plan.tiled[-1] if plan.tiled else plan.whole
        colours = {(0, 0, 0): "black"}
        pad = scaling.pad if scaling.pad is not None else plan.whole.pad
        return {
            "projector": keys.projector, "filter": scaling.filter,
            "fits": "stretches" if pad is None else f"keeps the ratio and pads with {colours.get(pad, str(pad))}",
            "mean": ", ".join(f"{x:.4g}" for x in keys.mean), "std": ", ".join(f"{x:.4g}" for x in keys.std),
            "width": plan.whole.size[0], "height": plan.whole.size[1], "merge": keys.merge, "patch": keys.patch,
            "eps": f"{keys.eps:.7g}", "act": keys.act, "head_dim": keys.head_dim,
        }  # fmt: skip

    def usual(self, variant: PictureVariant) -> bool:
        """Is this what the trained model of the projector does? Then it is documented beside llama.cpp's."""
        return self.tower.keys.projector in variant.usual


def usual_note(fault: str, variant: PictureVariant) -> str:
    """A behaviour that is no fault, in words."""
    if not fault:
        return f"{variant.label} than Pillow's integers, which is no fault"
    return (
        f"{fault}: {variant.label}, as the trained model does and llama.cpp does not; both are documented "
        "(docs/reference/vision.md)"
    )


def place_label(place: Place) -> str:
    return place[1] if place[0] == 0 else f"{place[1]}@{place[0]}"
