"""``python -m experiments reproduce ITEM``: every table and figure of both papers, at paper scale on GPUs and small here.

An :class:`~experiments.reproduce.item.Item` declares what a table prints and how it is measured again; a
:class:`~experiments.reproduce.source.Source` is a set of runs that several items share.
"""
