"""The arena: any set of budget rules and mask rules on one model and task, at an equal budget, over seeds.

:mod:`.rules` names the contestants, :mod:`.settings` what is held equal, :mod:`.run` trains one of them in a process of its own,
:mod:`.schedule` runs all and resumes, :mod:`.report` compares.
"""
