"""Tests for an engine that is believed to be right.

`engine_check` runs an engine at several lengths against the definition. `vectors` writes a kit of files (inputs and
expected outputs) that an engine in any language can read, `grade` grades its results. `two_files` compares two files of
one model. Touch this package to add a check that a right engine must pass.
"""
