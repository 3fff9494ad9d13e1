"""Entry point of ``python -m evorl``, which is equivalent to the command ``evorl``."""

from evorl.cli.commands import main

if __name__ == "__main__":
    main()
