"""Archives for quality diversity, which store the best solutions across descriptor space, usually one per cell."""

from evorl.ec.archives.archive import Archive, ArchiveState, Verdicts
from evorl.ec.archives.centroid import CentroidArchive
from evorl.ec.archives.dominated_novelty import DominatedNoveltyArchive
from evorl.ec.archives.grid import GridArchive
from evorl.ec.archives.registry import ARCHIVES

__all__ = [
    "ARCHIVES",
    "Archive",
    "ArchiveState",
    "CentroidArchive",
    "DominatedNoveltyArchive",
    "GridArchive",
    "Verdicts",
]
