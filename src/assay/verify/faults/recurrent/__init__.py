"""Edits of layers with a recurrent state: convolution, delta rule, scan, RWKV, and the state between two calls.

A function that replaces an operation with state takes the state last and returns its value and the new state
(`engines.reference.evaluate`). All calls of a sequence are one run here, so an edit of what happens between two calls
cuts the rows at `Context.starts`.
"""

from assay.verify.faults.recurrent import (
    convolution_edits,
    delta_rule_edits,
    hybrid_edits,
    rwkv_edits,
    scan_edits,
    state_edits,
)

__all__ = ["convolution_edits", "delta_rule_edits", "hybrid_edits", "rwkv_edits", "scan_edits", "state_edits"]
