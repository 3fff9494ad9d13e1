"""The command line. Modules that parse, list or supervise do not import JAX; a command's module does, when it runs."""

import time

STARTED = time.perf_counter()  # when the command began, before JAX and Hydra are imported
