"""The version of judge and agent. It is a module of its own, so that nothing inside has to import the package's front door."""

__version__ = "0.1.0"
