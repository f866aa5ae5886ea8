"""Dumps of a run: what another engine wrote or printed, as observations of this model's nodes; and assay's own traces.

`load.py` opens a path. `formats/` reads files, and `printed/` reads what people print. `naming/` translates foreign
names and phrases to nodes. `matching/` compares values with the definition's, to decide which node, row and layout an
observation is of where names leave that open. `resolve.py` puts these together. Come here when a dump or a log is not
read as meant.
"""
