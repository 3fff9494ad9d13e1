"""Writes a policy as a StableHLO artifact, which ``jax.export`` loads without evorl."""

from __future__ import annotations

import jax
from jax import export

from evorl.export.portable_policy import PortablePolicy

PLATFORMS = ("cpu", "cuda", "tpu")


def stablehlo_bytes(policy: PortablePolicy) -> bytes:
    """Serialize a policy; ``jax.export.deserialize(...).call`` then maps a dict of inputs to a dict of outputs.

    One file serves any batch size, on CPU, CUDA and TPU.

    Raises:
        ImportError: flatbuffers, which ``jax.export`` needs for serialization, is not installed.
    """
    (rows,) = export.symbolic_shape("rows")
    specs = {port.name: jax.ShapeDtypeStruct((rows, *port.shape), port.dtype) for port in policy.inputs}
    exported = export.export(jax.jit(policy.rows), platforms=PLATFORMS)(specs)
    try:
        return bytes(exported.serialize())
    except ImportError as error:
        raise ImportError(f"format=jax needs the package flatbuffers: pip install flatbuffers. ({error})") from error
