"""Bugs of the scrub: what is not read, not told, or told of what is whole.

What must not live here: what finds them.
"""

from __future__ import annotations

from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.log.journal import Journal
from cluster.log.sealed import Sealed
from cluster.node.scrub import Scrub
from cluster.store import rows
from cluster.store.rows import CheckedRows, Place

_sealed: Final = Journal.sealed
_take_slice: Final = Scrub._take_slice
_check: Final = rows._SliceReader._check


@bug("every row is read back", {"scrub"})
def the_first_row_of_a_slice_is_not_checked(patches: Patches) -> None:
    """Pass over the row with which a slice begins."""

    def check(
        reader: Any, table: str, key: Any, crc: Any, values: Any, blobs: tuple[Any, ...]
    ) -> bool:
        if reader._rows:
            return bool(_check(reader, table, key, crc, values, blobs))
        reader._rows += 1
        if table == "publications":  # what follows it is looked at
            reader._note_publication(values, sum(map(len, blobs)))
        return True

    patches.attribute(rows._SliceReader, "_check", check)


@bug("what is still written is not read back", {"scrub"})
def the_last_segment_is_taken_for_sealed(patches: Patches) -> None:
    """Read the segment that is being written: its last records are in a buffer."""

    def sealed(journal: Journal) -> list[Sealed]:
        last = journal._segments[-1]
        return [*_sealed(journal), Sealed(last.path, last.sequence, last.end)]

    patches.attribute(Journal, "sealed", sealed)


@bug("all damage is told", {"scrub"})
def only_the_first_damage_of_a_pass_is_told(patches: Patches) -> None:
    """Forget what else a pass has found."""

    def damaged(self: Scrub, under_way: Any, damage: Any) -> None:
        under_way.count += 1
        if not under_way.found:
            under_way.found[damage] = None
            self._log("damage_found", level="error", **damage.fields())

    patches.attribute(Scrub, "_damaged", damaged)


@bug("a row's checksum covers its blobs", {"scrub"})
def blobs_are_not_read_back(patches: Patches) -> None:
    """Believe a row with blobs what it says."""

    def check(
        reader: Any, table: str, key: Any, crc: Any, values: Any, blobs: tuple[Any, ...]
    ) -> bool:
        if not blobs:
            return bool(_check(reader, table, key, crc, values, blobs))
        reader._rows += 1
        if table == "publications":  # what follows it is looked at
            reader._note_publication(values, sum(map(len, blobs)))
        return True

    patches.attribute(rows._SliceReader, "_check", check)


@bug("a pass comes to its end", {"scrub"})
def a_pass_begins_anew_with_each_table(patches: Patches) -> None:
    """Begin with the first table again when another one has been read."""

    def take_slice(self: Scrub, under_way: Any, found: CheckedRows) -> None:
        if found.after is not None and found.after.table != under_way.place.table:
            found = CheckedRows(Place(), found.rows, found.size_bytes, found.damaged)
        _take_slice(self, under_way, found)

    patches.attribute(Scrub, "_take_slice", take_slice)


@bug("what was dropped meanwhile is no damage", {"scrub"})
def a_dropped_segment_is_told_as_missing(patches: Patches) -> None:
    """Tell of a segment that compaction has removed since the pass began."""
    patches.attribute(Journal, "holds", lambda journal, sealed: True)
