"""What was probably meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that is most like another one; capitals do not count."""
    by_small = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_small, n=1, cutoff=cutoff)
    return by_small[close[0]] if close else None
