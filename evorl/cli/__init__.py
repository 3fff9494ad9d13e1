"""The command line. What parses, lists or supervises is imported without JAX; a command's own module when it runs."""

import time

STARTED = time.perf_counter()  # when the command began, before JAX and Hydra are imported
