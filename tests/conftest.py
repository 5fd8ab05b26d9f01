"""No deadline for an example: the first one of a session may import SciPy, and machines are shared."""

from hypothesis import settings

settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")
