"""The command line. Modules that parse, list or supervise do not import JAX; modules of commands do when they run."""

import time

STARTED = time.perf_counter()  # when the command began, before JAX and Hydra are imported
