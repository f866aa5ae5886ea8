"""Dumps of a run: what another engine wrote or printed, as observations of this model's nodes; and assay's own traces.

`load.py` opens a path. `formats/` reads files, `printed/` reads what people print, `naming/` translates names,
`matching/` decides by values, `resolve.py` puts these together. Come here when a dump or a log is not read as meant.
"""
