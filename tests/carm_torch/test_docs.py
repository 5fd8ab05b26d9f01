"""The page on masks: its loop runs as printed and learns, its table states what the certificates state."""

import re
from pathlib import Path

import pytest

from carm_core import CARM, MeanExpAbs, TRMMean

PAGE = (Path(__file__).parents[2] / "docs" / "masks.md").read_text(encoding="utf-8")
LOOP = re.search(r"```python\n(.*?)```", PAGE, re.S).group(1)


def test_the_loop_has_fifteen_lines_and_learns():
    assert len([line for line in LOOP.splitlines() if line]) == 15
    scope: dict = {}
    exec(compile(LOOP, "docs/masks.md", "exec"), scope)
    p = scope["logits"].detach().softmax(-1)
    assert p.argmax().item() == 2 and p[2] > 0.2
    assert scope["keep"].dtype == scope["torch"].bool and scope["keep"].shape == (8,)


@pytest.mark.parametrize("rule", [CARM(1.02), MeanExpAbs(1.02), TRMMean(0.001)], ids=repr)
def test_the_table_states_the_certificates(rule):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{type(rule).__name__}(")]
    assert f"{100 * rule.certificate((0.8, 1.28)).p_out:.2f}%" in row


def test_every_name_on_the_page_exists():
    import carm_core
    import carm_torch

    arguments = {"float32", "float64", "mask", "rollout", "keep", "cu_seqlens", "clip_low", "clip_high", "carm_core", "carm_torch"}
    names = set(re.findall(r"`(\w+)(?:\(|`)", PAGE)) - arguments
    known = {*vars(carm_core), *vars(carm_torch), "get_off_policy_mask"}
    assert {n for n in names if n not in known} == set()
