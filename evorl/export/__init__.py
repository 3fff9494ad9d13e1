"""Export of a run's policy as ONNX, StableHLO, plain NumPy or HTML, and as a Python function of observations."""

FORMATS = {"onnx": "onnx", "jax": "stablehlo", "numpy": "py", "html": "html"}  # suffix of the file, by format
