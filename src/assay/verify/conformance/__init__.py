"""The healthy path: a kit of files for any engine and its grades, lengths against the definition, two files."""
