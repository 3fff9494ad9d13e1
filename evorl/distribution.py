"""The name by which pip installs this package, and its version."""

from importlib.metadata import PackageNotFoundError, version

# On package indexes, evorl and evorl-jax are other projects, which are imported as evorl too.
DISTRIBUTION = "evorl-engine"


def installed_version() -> str:
    """Return the version of this package; ``0+source`` for a source tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"
