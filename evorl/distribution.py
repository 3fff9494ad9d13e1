"""Name of this package on package indexes, and its version."""

from importlib.metadata import PackageNotFoundError, version

# On package indexes, the names evorl and evorl-jax belong to other projects, which also install a package evorl.
DISTRIBUTION = "evorl-engine"


def installed_version() -> str:
    """Return the version of this package; ``0+source`` for a source tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"
