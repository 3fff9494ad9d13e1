"""Checkpoints: the whole state of a run on disk, and back. Orbax is imported when it is needed, not here."""

from evorl.checkpointing.run_checkpointer import RunCheckpointer
from evorl.checkpointing.structure import CheckpointError, LeafSpec, describe_structure, explain_difference

__all__ = ["CheckpointError", "LeafSpec", "RunCheckpointer", "describe_structure", "explain_difference"]
