"""The command line. Only commands that need JAX import it, so that help texts and lists of runs appear quickly."""

import time

STARTED = time.perf_counter()  # start of the command, before JAX and Hydra are imported
