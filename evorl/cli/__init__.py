"""The command line. Modules that parse, list or supervise do not import JAX; commands that train or evaluate do."""

import time

STARTED = time.perf_counter()  # start of the command, before JAX and Hydra are imported
