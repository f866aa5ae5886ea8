"""The version of the package. Every module may import it, because this module imports nothing."""

__version__ = "0.2.0.dev0"
