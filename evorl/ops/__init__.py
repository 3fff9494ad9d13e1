"""Pure functions on arrays; each formula of the package is implemented once, here."""
