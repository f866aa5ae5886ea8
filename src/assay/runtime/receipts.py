"""Receipts: a proof of the file, arithmetic and settings that gave an answer. The file is enough to check it.

A receipt is a chain of hashes over the bits of the logits at every token of an answer. The cpu and the cuda engine give
the same bits on every machine, so anyone can compute the logits again and compare. docs/reference/receipts.md is the
specification, with test vectors.

    row    = two sums of products of the bits of the logits (native/row_digest.cpp)
    link 0 = BLAKE2b-256 of "assay receipt 4\\n" and the header as canonical JSON
    link i = BLAKE2b-256 of link i-1, token i as a little-endian u32, row i

A row is 200 kB and more, so its hash is nearly all of the work. A replay computes the row itself, so the hash need not
resist collisions. It must depend on every bit, so that a server has to compute the row. The sums do, at three times the
speed of GMAC (version 3), nine times that of SHA-256 (version 2) and twenty times that of BLAKE2b (version 1). No token
is drawn from a row with NaN, whose bits differ between machines. The last link is signed with Ed25519. Touch this
module to change what a receipt binds, and raise `VERSION` with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import Arithmetic
from assay.errors import AssayError
from assay.runtime.image_places import Images
from assay.runtime.params import SamplerParams
from assay.system.extras import install

VERSION = 4
ROW_KEY, ROW_NONCE = b"assay receipt 3\n", bytes(12)  # of GMAC, in version 3
MAX_TOKENS = 1 << 22  # of a prompt or an answer
_NAN = np.array([0x7FC00000], np.uint32).view(np.float32)[0]
_SKIPPED = ("dry_breakers", "seed")  # settings that the header holds in another form
_FLOATS = {f.name for f in fields(SamplerParams) if isinstance(f.default, float)}
Array = NDArray[Any]


def _sha256(row: Any) -> bytes:
    return hashlib.sha256(row).digest()[:16]


def _blake2b(row: Any) -> bytes:
    return hashlib.blake2b(row, digest_size=16).digest()


def _sums(row: Any) -> bytes:
    first, second = _native.row_digest(np.frombuffer(row, np.uint32))
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


def _gmac(row: Any) -> bytes:
    return bytes(_aes_gcm().encrypt(ROW_NONCE, b"", memoryview(row).cast("B")))


@cache
def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise _missing() from None
    return AESGCM(ROW_KEY)


# By the version of the receipt.
ROW_HASHES: dict[int, Callable[[Any], bytes]] = {1: _blake2b, 2: _sha256, 3: _gmac, 4: _sums}


def row_digest(logits: Array, version: int = VERSION) -> bytes:
    """The hash of one row of logits."""
    row = np.ascontiguousarray(logits, "<f4")
    if version < 3 and np.isnan(row).any():
        row = np.where(np.isnan(row), _NAN, row).astype("<f4")
    return ROW_HASHES[version](row.data)


def ids_digest(ids: Sequence[int]) -> str:
    """The hash of token ids, each a little-endian u32."""
    return hashlib.blake2b(np.asarray(ids, "<u4").tobytes(), digest_size=32).hexdigest()


def canonical(value: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII; floats as the shortest text that reads back the same."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def chain(header: Mapping[str, Any], tokens: Sequence[int], rows: Sequence[bytes]) -> str:
    """The last link."""
    mark = f"assay receipt {header['version']}\n".encode()
    link = hashlib.blake2b(mark + canonical(header), digest_size=32).digest()
    for token, row in zip(tokens, rows, strict=True):
        link = hashlib.blake2b(link + int(token).to_bytes(4, "little") + row, digest_size=32).digest()
    return link.hex()


def header_of(
    file: str,
    arithmetic: Arithmetic,
    params: SamplerParams,
    seed: int,
    prompt: Sequence[int],
    *,
    constrained: bool,
    images: Images = (),
) -> dict[str, Any]:
    """The data that link 0 is the hash of. A prompt without pictures has no field for them."""
    pictures = [{"at": p.start, "rows": p.end - p.start, "digest": p.image.digest.hex()} for p in images]
    settings: dict[str, Any] = {f.name: getattr(params, f.name) for f in fields(params) if f.name not in _SKIPPED}
    settings["logit_bias"] = [[token, "-inf" if math.isinf(bias) else bias] for token, bias in params.logit_bias]
    settings = typed_settings(settings)
    return {
        "version": VERSION,
        "file": file,
        "arithmetic": [arithmetic.name, arithmetic.precision, arithmetic.kv_type, arithmetic.version],
        "settings": settings,
        "seed": str(seed),  # 64 bits, more than a JSON number holds in many languages
        "prompt": ids_digest(plain_ids(prompt)),
        "constrained": constrained or bool(params.dry_breakers),
        **({"pictures": pictures} if pictures else {}),
    }


def typed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with floats where the page says float: a caller may give 0, and JavaScript writes 0 for 0.0."""
    found = {name: float(v) if name in _FLOATS and type(v) is int else v for name, v in settings.items()}
    if isinstance(bias := settings.get("logit_bias"), list):
        found["logit_bias"] = [
            [pair[0], float(pair[1]) if type(pair[1]) is int else pair[1]]
            if isinstance(pair, list) and len(pair) == 2
            else pair
            for pair in bias
        ]
    return found


def plain_ids(prompt: Sequence[int]) -> list[int]:
    """The ids as a receipt has them: 0 at the rows of pictures, which the header names."""
    return [max(int(token), 0) for token in prompt]


# --- keys


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise _missing() from None
    return ed25519


def _missing() -> AssayError:
    return AssayError(f"receipts: the package cryptography is not installed; {install('receipts')}")


class Signer:
    """A private key: 32 bytes in hexadecimal, in a file that only its owner should read."""

    def __init__(self, secret: bytes) -> None:
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self.public: str = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def of_file(cls, path: Path) -> Signer:
        """The key of a file, which is made if it does not exist."""
        if not path.exists():
            import secrets

            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_bytes(32).hex() + "\n")
        try:
            secret = bytes.fromhex(path.read_text("ascii").strip())
        except OSError as error:
            raise AssayError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
        except ValueError as error:
            raise AssayError(f"{path}: cannot read a key ({error}); expected 64 hexadecimal digits") from None
        if len(secret) != 32:
            raise AssayError(f"{path}: not a key (found {len(secret)} bytes, expected 32)")
        return cls(secret)

    def sign(self, link: str) -> str:
        return str(self._key.sign(bytes.fromhex(link)).hex())


def signed_by(public: str, link: str, signature: str) -> bool:
    """Whether the owner of a public key signed the link."""
    module = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        module.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(
            bytes.fromhex(signature), bytes.fromhex(link)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


# --- the receipt


@dataclass(frozen=True)
class Receipt:
    """An answer and the evidence of how it was computed."""

    header: Mapping[str, Any]
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: tuple[bytes, ...]
    link: str
    key: str = ""
    signature: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "header": dict(self.header),
            "prompt_ids": list(self.prompt),
            "tokens": list(self.tokens),
            "rows": [row.hex() for row in self.rows],
            "chain": self.link,
            "key": self.key,
            "signature": self.signature,
        }


def make_receipt(
    header: Mapping[str, Any],
    prompt: Sequence[int],
    tokens: Sequence[int],
    rows: Sequence[bytes],
    signer: Signer | None = None,
) -> Receipt:
    link = chain(header, tokens, rows)
    key, signature = (signer.public, signer.sign(link)) if signer is not None else ("", "")
    return Receipt(header, tuple(plain_ids(prompt)), tuple(tokens), tuple(rows), link, key, signature)


def read_receipt(found: Any, where: str = "receipt") -> Receipt:
    """A receipt from JSON, with the type and size of every part checked."""
    if not isinstance(found, dict) or "header" not in found:
        raise AssayError(
            f"{where}: not a receipt; expected one of `assay serve --receipts KEY`, or an answer with some"
        )
    header = found.get("header")
    version = header.get("version") if isinstance(header, dict) else None
    if not isinstance(header, dict) or type(version) is not int or version not in ROW_HASHES:
        raise AssayError(f"{where}: unknown version (found {version!r:.40}, expected 1 to {VERSION})")
    ids = {name: _ids(found.get(name), f"{where}: {name}") for name in ("prompt_ids", "tokens")}
    rows = found.get("rows")
    if not isinstance(rows, list) or len(rows) != len(ids["tokens"]):
        raise AssayError(f"{where}: rows: expected one for each of {len(ids['tokens'])} tokens")
    try:
        digests = tuple(bytes.fromhex(row) for row in rows)
        texts = {name: str(found.get(name, "")) for name in ("chain", "key", "signature")}
        sizes = {len(d) for d in digests} | {len(bytes.fromhex(texts["chain"]))}
        if version == VERSION and isinstance(header.get("settings"), dict):
            header = {**header, "settings": typed_settings(header["settings"])}
        canonical(header)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise AssayError(f"{where}: a hash is not hexadecimal, or the header is not plain JSON") from None
    if not sizes <= {16, 32}:
        raise AssayError(f"{where}: a hash has the wrong length")
    return Receipt(header, ids["prompt_ids"], ids["tokens"], digests, texts["chain"], texts["key"], texts["signature"])


def _ids(value: Any, where: str) -> tuple[int, ...]:
    good = isinstance(value, list) and len(value) <= MAX_TOKENS
    if not good or not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in value):
        raise AssayError(f"{where}: expected a list of token ids")
    return tuple(value)


def settings_of(header: Mapping[str, Any]) -> tuple[SamplerParams, int]:
    """The sampler's settings and the seed of a header."""
    given = header.get("settings")
    try:
        assert isinstance(given, dict)
        known = {f.name for f in fields(SamplerParams)} - set(_SKIPPED)
        if given.keys() != known:
            raise AssayError("receipt: settings: other names than this version has")
        bias = tuple((int(t), -math.inf if b == "-inf" else float(b)) for t, b in given["logit_bias"])
        seed = int(header["seed"])
        return SamplerParams(**{**given, "logit_bias": bias, "seed": seed}), seed
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise AssayError(f"receipt: settings cannot be read ({error})") from None
