"""Pictures of a request: their bytes, decoded in the sandbox and encoded by the tower, all off the event loop.

A picture is a data URL, or with `--allow-media-urls` an http or https URL. Sizes and tokens are checked before anything
is computed: bytes before decoding, pixels before the tower runs. Clients take turns (`pool/threads.py`).
"""

from __future__ import annotations

import base64
import binascii
import urllib.error
import urllib.request
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes, urlsplit

from assay.errors import AssayError
from assay.runtime.image_places import Images
from assay.runtime.pictured_prompt import compose
from assay.serve.api.schemas import MARK, ChatMessage, ImagePart
from assay.serve.api.server_state import State
from assay.serve.api_errors import ApiError
from assay.serve.pool.models import ServedModel
from assay.vision.picture import decode_boxed
from assay.vision.rows import ImagePrompt

_FETCH_S = 20.0
PARAM = "messages"


def urls_of(messages: Sequence[ChatMessage]) -> list[str]:
    """The URLs of all pictures, in order."""
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    return [part.image_url.url for part in parts if isinstance(part, ImagePart)]


async def with_pictures(
    state: State, entry: ServedModel, text: str, urls: Sequence[str], *, mark: str = MARK, rendered: bool = True,
    counted: bool = False,
) -> tuple[tuple[int, ...], Images]:  # fmt: skip
    """The ids of a text in which `mark` stands for each picture, and the places of the pictures.

    `counted`: the caller needs the number of tokens, so no tower is run; the rows have no values.
    """
    if not entry.base.sees:
        raise ApiError("unsupported", f"images are not supported by this model ({entry.base.blind})", PARAM)
    if len(urls) > state.limits.pictures:
        raise ApiError("invalid_value", f"images: too many (found {len(urls)}, at most {state.limits.pictures})", PARAM)
    pictures = [await _picture(state, entry, url, counted=counted) for url in urls]
    try:
        return await state.threads.run(
            "text", lambda: compose(entry.tokenizer, text, mark, pictures, rendered=rendered)
        )
    except AssayError as error:
        raise ApiError("invalid_prompt", str(error), PARAM) from None


async def _picture(state: State, entry: ServedModel, url: str, *, counted: bool) -> ImagePrompt:
    data = await state.threads.run("fetch", lambda: _bytes(url, state.limits.picture_bytes, allowed=state.media_urls))

    def work() -> ImagePrompt:
        try:
            reader = entry.base.pictures
        except AssayError as error:
            raise ApiError("unsupported", str(error), PARAM) from None
        try:
            if counted:
                return reader.count(data, decode_boxed)
            return reader.read(data, decode_boxed, most=entry.n_ctx)
        except AssayError as error:
            raise ApiError("invalid_value", str(error), PARAM) from None

    return await state.threads.run("picture", work)


def data_url(encoded: str) -> str:
    """A picture that a client sent as base64 alone."""
    return encoded if encoded.startswith("data:") else f"data:;base64,{encoded}"


def _bytes(url: str, most: int, *, allowed: bool) -> bytes:
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return _from_data(url, most)
    if scheme not in ("http", "https"):
        raise ApiError("invalid_value", f"image_url: must be a data URL (found {url[:20]!r})", PARAM)
    if not allowed:
        raise ApiError(
            "unsupported", "image_url: this server fetches no pictures; send a data URL (or start it with "
            "--allow-media-urls)", PARAM,
        )  # fmt: skip
    return _fetched(url, most)


def _from_data(url: str, most: int) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        raise ApiError("invalid_value", "image_url: a data URL needs a comma before its data", PARAM)
    if len(body) > 4 * most:
        raise _too_large(most)
    try:
        found = base64.b64decode(body, validate=True) if head.lower().endswith(";base64") else unquote_to_bytes(body)
    except (binascii.Error, ValueError):
        raise ApiError("invalid_value", "image_url: its data are not valid base64", PARAM) from None
    if len(found) > most:
        raise _too_large(most)
    return found


def _fetched(url: str, most: int) -> bytes:
    """The bytes behind an http or https URL. Redirects to other schemes are not followed."""
    if not urlsplit(url).hostname:
        raise ApiError("invalid_value", "image_url: has no host", PARAM)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPRedirectHandler(),
    ):
        opener.add_handler(handler)
    try:
        with opener.open(urllib.request.Request(url, headers={"User-Agent": "assay"}), timeout=_FETCH_S) as reply:
            found: bytes = reply.read(most + 1)
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: no handler for the scheme of a redirect
        reason = getattr(error, "reason", None) or type(error).__name__
        raise ApiError("invalid_value", f"image_url: cannot be fetched ({reason!s:.80})", PARAM) from None
    if len(found) > most:
        raise _too_large(most)
    return found


def _too_large(most: int) -> ApiError:
    return ApiError("invalid_value", f"image_url: too many bytes (at most {most}); make the picture smaller", PARAM)
