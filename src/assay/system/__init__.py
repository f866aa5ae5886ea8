"""The operating system: atomic file writes, the sandbox for untrusted input, terminal-safe text, entry points.

The lowest package: it imports nothing of assay but the error. Touch it when a file must be written safely (`files`),
untrusted work must be confined (`box`), or another package must be found (`plugins`).
"""
