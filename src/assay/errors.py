"""The exception for all errors that a user can fix: in a file, a request or an argument.

Its text is a single line, `object: what is wrong (found X, expected Y); what to do`. The command line prints it on
stderr and exits with code 2. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations


class AssayError(Exception):
    """An error that the user can fix; the message says how."""
