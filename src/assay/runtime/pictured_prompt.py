"""Prompts with pictures: from text with marks and encoded pictures to the ids and places of a job.

The text around a picture, the picture's own markers and its rows are tokenised apart, as llama.cpp does. BOS comes
once, before everything. In a plain text `<__media__>` says where a picture goes. In a conversation each picture has a
mark that no writer of a message can know, so that a text cannot pass for a picture.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

from assay.errors import AssayError
from assay.runtime.image_places import Images, place_images
from assay.text import ChatTemplate, Tokenizer
from assay.text.template import encode_rendered
from assay.vision.encode import (
    encode_picture,
    encode_prepared,
    picture_tokens,
    planned_prompt,
    prepared_image,
    prepared_plan,
    prepared_prompt,
)
from assay.vision.picture import MAX_BYTES, decode_picture
from assay.vision.projector import Projector
from assay.vision.resize import Bytes
from assay.vision.rows import ImagePrompt, ImageRows

MEDIA = "<__media__>"  # llama.cpp's mark
_KEPT = 32  # pictures whose rows are kept
_KEPT_BYTES = 256 << 20
T = TypeVar("T")
_PARTS = ("image", "image_url", "input_image")  # types of a message's part that is a picture


def new_mark() -> str:
    """A mark that occurs in no text but by intent."""
    return f"<__media_{secrets.token_hex(8)}__>"


def projector_beside(model: Path) -> Path:
    """The mmproj file in the folder of a model."""
    found = sorted(p for p in model.parent.glob("*.gguf") if "mmproj" in p.name.lower() and p != model)
    own = [p for p in found if _stem(p) == _stem(model)]
    if len(found if len(found) == 1 else own) != 1:
        names = ", ".join(p.name for p in found[:8])
        raise AssayError(
            f"{model.name}: images are not supported by this model alone; "
            + (f"several mmproj files lie beside it ({names}); " if found else "no mmproj file lies beside it; ")
            + "name one with --mmproj FILE"
        )
    return (found if len(found) == 1 else own)[0]


def _stem(path: Path) -> str:
    """The words of a file's name that tell which model it is."""
    name = path.stem.lower().replace("mmproj", "").replace("text", "")
    return "".join(c for c in name if c.isalnum())


class _Kept(Generic[T]):
    """The results of the last pictures, by the hash of what they were made from. For any thread."""

    def __init__(self, nbytes: Callable[[T], int]) -> None:
        self._found: OrderedDict[bytes, T] = OrderedDict()
        self._nbytes, self._lock = nbytes, threading.Lock()

    def get(self, name: bytes) -> T | None:
        with self._lock:
            if name in self._found:
                self._found.move_to_end(name)
            return self._found.get(name)

    def put(self, name: bytes, value: T) -> None:
        with self._lock:
            self._found[name] = value
            while len(self._found) > _KEPT or sum(map(self._nbytes, self._found.values())) > _KEPT_BYTES:
                self._found.popitem(last=False)


class PictureReader:
    """Encodes the pictures of one model's prompts, and keeps the rows of the last ones. For any thread.

    Without `runs`, another process runs the tower: a picture is prepared here, and its rows have no values.
    """

    def __init__(self, projector: Projector, *, runs: bool = True) -> None:
        self.projector, self._runs = projector, runs
        self._prompts: _Kept[ImagePrompt] = _Kept(_nbytes)
        self._images: _Kept[ImageRows] = _Kept(_image_nbytes)

    def tokens(self, width: int, height: int) -> int:
        """The rows of a picture of this size; its markers come on top."""
        return picture_tokens(self.projector, width, height).tokens

    def count(self, data: bytes, decode: Callable[[bytes], Bytes] = decode_picture) -> ImagePrompt:
        """The markers of a picture and as many rows as it becomes, without their values: the tower is not run."""
        height, width, _ = decode(data).shape
        return planned_prompt(self.projector, width, height)

    def read(
        self, data: bytes, decode: Callable[[bytes], Bytes] = decode_picture, *, most: int | None = None
    ) -> ImagePrompt:
        """The rows and the markers of a picture, from the bytes of its file. `most`: tokens that it may become."""
        name = sha256(data).digest()
        if (kept := self._prompts.get(name)) is not None:
            return kept
        pixels = decode(data)
        tokens = self.tokens(pixels.shape[1], pixels.shape[0])
        if most is not None and tokens > most:
            raise AssayError(
                f"picture: becomes {tokens} tokens, more than the context of {most}; make it smaller, or use a larger "
                "--ctx-size"
            )
        found = (encode_picture if self._runs else prepared_prompt)(self.projector, pixels)
        self._prompts.put(name, found)
        return found

    def count_prepared(self, pixels: Bytes) -> int:
        """The rows of an image that another process prepared."""
        return prepared_plan(self.projector, pixels).tokens

    def read_prepared(self, pixels: Sequence[Bytes]) -> list[ImageRows]:
        """The rows of images that other processes prepared."""
        images = [prepared_image(self.projector, one) for one in pixels]
        found = {name: kept for name, _ in images if (kept := self._images.get(name)) is not None}
        made = encode_prepared(self.projector, {name: image for name, image in images if name not in found})
        for name, rows in made.items():
            self._images.put(name, rows)
        return [(found | made)[name] for name, _ in images]


def _nbytes(prompt: ImagePrompt) -> int:
    return sum(_image_nbytes(piece) for piece in prompt.pieces if isinstance(piece, ImageRows))


def _image_nbytes(image: ImageRows) -> int:
    return (image.rows if image.pixels is None else image.pixels).nbytes


def picture_bytes(picture: Any) -> bytes:
    """The bytes of a picture that a caller names by its path or gives whole."""
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if not isinstance(picture, str | Path):
        raise AssayError(f"images: each must be a path or the bytes of a picture (found {picture!r:.60})")
    if str(picture).startswith(("http://", "https://")):
        raise AssayError(f"{picture}: is a URL, and pictures are read from files; download it first")
    path = Path(picture)
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise AssayError(f"{path}: too many bytes for a picture (found {size}, expected at most {MAX_BYTES})")
        return path.read_bytes()
    except OSError as error:
        raise AssayError(f"{path}: cannot read the picture ({error.strerror})") from None


def named_picture(reader: PictureReader, picture: Any) -> ImagePrompt:
    """The rows of a picture that a caller names by its path or gives whole; errors name the file."""
    data = picture_bytes(picture)
    try:
        return reader.read(data)
    except AssayError as error:
        raise AssayError(f"{picture}: {error}" if isinstance(picture, str | Path) else str(error)) from None


def marked_text(text: str, n: int) -> str:
    """A text with a mark for each of n pictures: as it is, or with the pictures before it."""
    found = text.count(MEDIA)
    if found not in (0, n):
        raise AssayError(f"images: {MEDIA} says where pictures go (found {found} in the text, expected {n}, or none)")
    return text if found else MEDIA * n + text


def marked_messages(messages: Sequence[Mapping[str, Any]], n: int, mark: str) -> list[dict[str, Any]]:
    """Messages with a mark for each of n pictures: at a part that is a picture, or before the last user message."""
    found = [dict(message) for message in messages]
    placed = 0
    for message in found:
        if isinstance(content := message.get("content"), list | tuple):
            placed += sum(_is_picture(part) for part in content)
            message["content"] = "".join(mark if _is_picture(part) else _text_of(part) for part in content)
    if not placed and (asked := [m for m in found if m.get("role") == "user"]):
        asked[-1]["content"] = mark * n + str(asked[-1].get("content") or "")
        placed = n
    if placed != n:
        raise AssayError(f"images: the messages have {placed} places for pictures (found {n} pictures)")
    return found


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _PARTS


def _text_of(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
        return text
    raise AssayError(f"messages: a part of a message must be a text or a picture (found {part!r:.60})")


def compose(
    tokenizer: Tokenizer, text: str, mark: str, pictures: Sequence[ImagePrompt], *, rendered: bool
) -> tuple[tuple[int, ...], Images]:
    """The ids of a text and the places of its pictures. `rendered`: a chat template has written the text."""
    first, *rest = text.split(mark)
    if len(rest) != len(pictures):
        raise AssayError(
            f"images: the chat template has left {len(rest)} places for {len(pictures)} pictures; "
            "use a template that writes every message once"
        )

    def plain(part: str) -> list[int]:
        return tokenizer.encode(part, add_special=False) if part else []

    begun = encode_rendered(tokenizer, first) if rendered else plain(first)
    if not rendered and tokenizer.add_bos and tokenizer.bos is not None and begun[:1] != [tokenizer.bos]:
        begun = [tokenizer.bos, *begun]
    pieces: list[Sequence[int] | ImageRows] = [begun]
    for picture, behind in zip(pictures, rest, strict=True):
        pieces += [plain(piece) if isinstance(piece, str) else piece for piece in picture.pieces]
        pieces.append(plain(behind))
    return place_images(pieces)


def prompt_with_pictures(
    tokenizer: Tokenizer,
    said: str | Sequence[Mapping[str, Any]],
    pictures: Sequence[ImagePrompt],
    template: ChatTemplate | None = None,
    **options: Any,
) -> tuple[tuple[int, ...], Images]:
    """The prompt of a text, or of messages that the template renders with `options`."""
    if isinstance(said, str):
        return compose(tokenizer, marked_text(said, len(pictures)), MEDIA, pictures, rendered=False)
    if template is None:
        raise AssayError("images: the model has no chat template for messages; give a template, or a text")
    mark = new_mark()
    text = template.render(marked_messages(said, len(pictures), mark), **options)
    return compose(tokenizer, text, mark, pictures, rendered=True)
