"""Tokenizers, chat templates and parsers of answers, all driven by the metadata of the file.

Touch it for a new vocabulary kind, pre-tokenizer, built-in template, or tool-call notation.
"""

from __future__ import annotations

from assay.text.template import ChatTemplate, encode_chat
from assay.text.tokenizer import Detokenizer, Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "encode_chat"]
