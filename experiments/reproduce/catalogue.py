"""Every item by name."""

from __future__ import annotations

from . import carm_figures, carm_tables, cgrpo_ablations, cgrpo_cost, cgrpo_coverage, cgrpo_tables
from .item import Item

__all__ = ["ITEMS", "item"]

_MODULES = (cgrpo_tables, cgrpo_ablations, cgrpo_coverage, cgrpo_cost, carm_tables, carm_figures)
ITEMS: dict[str, Item] = {i.id: i for module in _MODULES for i in module.ITEMS}


def item(name: str) -> Item:
    """The item of that name.

    >>> item("table1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: item: got 'table1'; need one of cgrpo-table1, ... or all; because those are the tables and figures of the papers
    """
    if name not in ITEMS:
        raise ValueError(
            f"item: got {name!r}; need one of {', '.join(ITEMS)} or all; because those are the tables and figures of the papers"
        )
    return ITEMS[name]
