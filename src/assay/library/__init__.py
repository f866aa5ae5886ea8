"""The face that `import assay` shows: models that generate, and verdicts on other people's engines."""
