"""The version of the package: one place that every module may read."""

__version__ = "0.2.0.dev0"
