"""Fuzzers that stay: every reader of a stranger's bytes, fed with inputs that are nearly right.

    make fuzz                          two minutes over all readers
    make fuzz MINUTES=60               longer
    python -m fuzz --reader dump --seed 7 --inputs 1000

A reader may refuse an input with its own error, and nothing else: no other exception, no signal, no more than ten
seconds, no more than a gigabyte.
"""
