"""Policies taken away from a run: as ONNX, StableHLO, plain NumPy or a page, and as a function of observations."""
