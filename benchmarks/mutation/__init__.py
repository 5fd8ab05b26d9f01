"""Mutation testing of a core: how many small changes of its source make some test fail."""
