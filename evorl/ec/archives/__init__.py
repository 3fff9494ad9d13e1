"""Archives for quality diversity, which store the best solution of every cell of descriptor space."""

from evorl.ec.archives.archive import Archive, ArchiveState
from evorl.ec.archives.centroid import CentroidArchive
from evorl.ec.archives.grid import GridArchive
from evorl.ec.archives.registry import ARCHIVES

__all__ = ["ARCHIVES", "Archive", "ArchiveState", "CentroidArchive", "GridArchive"]
