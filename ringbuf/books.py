"""The sums that must hold between the counts of a ring, as `Ring.books()` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at_rest(books: Mapping[str, Any]) -> list[str]:
    """What is wrong with the books of a ring that rests and whose dead were swept; [] if nothing is.

    Committed comes from the words (less the count of sequences passed over), in flight from the words,
    consumed and dropped from counters: the sum can fail."""
    wrong = []
    dropped = sum(books["dropped"].values())
    if books["committed"] != books["consumed"] + dropped + books["in_flight"]:
        wrong.append(f"committed {books['committed']} != consumed {books['consumed']} + dropped {dropped} "
                     f"+ in flight {books['in_flight']}")
    if books["writing"]:
        wrong.append(f"{books['writing']} slots are still being written")
    return wrong + live(books)


def live(books: Mapping[str, Any]) -> list[str]:
    """What is wrong with the books of a ring in use; [] if nothing is.

    A plain difference of counters read one after the other gives false alarms, since the reader may be
    preempted in between: hence the bracket. A slot's word learns of sequences that were passed over only when
    the slot is written again, and their count follows the head by one at most."""
    most = books["done_again"] + books["slots"]
    if books["dropping"]:
        most += books["not_written"] + 1
    if books["done"] <= books["offered"] <= most:
        return []
    return [f"offered {books['offered']} is not between done {books['done']} and {most}"]
