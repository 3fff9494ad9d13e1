"""Policies taken away from a run: as ONNX, StableHLO, plain NumPy or a page, and as a function of observations."""

FORMATS = {"onnx": "onnx", "jax": "stablehlo", "numpy": "py", "html": "html"}  # of files, and the ends of their names
