"""Text: the tokenizer and the chat template, both from the file's own metadata."""

from __future__ import annotations

from assay.text.template import ChatTemplate, encode_chat
from assay.text.tokenizer import Detokenizer, Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "encode_chat"]
