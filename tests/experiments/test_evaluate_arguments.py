"""Statistics of every table of passes, and one error for whatever is none."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import evaluate as module
from experiments.evaluate import evaluate, sample_texts, statistics

PASSES = np.array([[1, 0, 1], [0, 0, 1]], dtype=bool)
CODES, GOLD = np.array([[0, 1, 0], [1, 1, 0]]), np.array([0, 0])


@given(n=st.integers(1, 4), samples=st.integers(1, 5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_table_has_all_statistics_of_every_k(n, samples, data):
    passes = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=samples, max_size=samples), min_size=n, max_size=n)))
    ks = data.draw(st.lists(st.integers(1, samples), min_size=1, unique=True))
    measured = statistics(passes, ks)
    assert [(s.k, s.statistic) for s in measured.statistics] == [(k, name) for k in ks for name in ("pass", "all", "best", "worst")]
    assert all(s.low <= s.value <= s.high for s in measured.statistics) and measured.majority == {}
    for kind in (int, float, np.uint8, list):
        same = passes.tolist() if kind is list else passes.astype(kind)
        assert statistics(same, ks).to_json() == measured.to_json()


@pytest.mark.parametrize(
    "passes",
    [
        np.ones(3), np.ones((2, 2, 2)), np.ones(()), np.ones((0, 3)), np.ones((3, 0)), [], [[]], True, [1, 0], [[1, 2]], [[-1, 0]],
        [[0.5, 1]], [[math.nan, 1]], [["1", "0"]], [[None, True]], np.array([[1j, 0]]),
    ],
)  # fmt: skip
def test_tables_that_are_none(passes):
    with pytest.raises(ValueError, match=r"(?s)^passes: got .*; need .*; because .+$"):
        statistics(passes, (1,))


@pytest.mark.parametrize("ks", [(), [], (0,), (-1,), (4,), (1, 1), (1.0,), (1.5,), ("1",), (None,), (True,), (1, 2, 4), np.array([])])
def test_ks_that_cannot_be_drawn(ks):
    with pytest.raises(ValueError, match=r"^ks: got .*; need integers in 1\.\.3, at least one and none twice; because .+$"):
        statistics(PASSES, ks)


@pytest.mark.parametrize(
    ("codes", "gold", "name"),
    [(None, GOLD, "codes"), (CODES, None, "gold"), (CODES[:1], GOLD, "codes"), (CODES, GOLD[:1], "codes"),
     (CODES[:, :2], GOLD, "codes"), (GOLD, GOLD, "codes")],
)  # fmt: skip
def test_answers_that_do_not_belong_to_the_table(codes, gold, name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because .+$"):
        statistics(PASSES, (1,), codes, gold)
    assert statistics(PASSES, (1, 3), CODES, GOLD).majority.keys() == {1, 3}


counts = st.integers(max_value=0) | st.sampled_from([1.0, 2.5, "2", None, True, math.nan])
OUTSIDE = {
    "samples": counts,
    "batch": counts,
    "max_new_tokens": counts,
    "seed": st.integers(max_value=-1) | st.integers(min_value=2**31) | st.sampled_from([1.0, None, "1"]),
    "temperature": st.floats(max_value=0.0) | st.sampled_from([math.nan, math.inf]),
    "top_p": st.floats(max_value=0.0) | st.floats(min_value=1.0, exclude_min=True) | st.just(math.nan),
    "top_k": st.integers(max_value=-1) | st.sampled_from([1.0, None, True]),
}


@pytest.mark.parametrize("name", OUTSIDE)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_sampling_outside_its_range_is_refused_before_the_model_is_touched(name, data):
    arguments = {"samples": 2, name: data.draw(OUTSIDE[name])}
    with pytest.raises(ValueError, match=rf"(?s)^{name}: got .*; need .*; because .+$"):
        sample_texts(None, None, ["x"], **arguments)
    if not name.startswith("top_"):
        with pytest.raises(ValueError, match=rf"(?s)^{name}: got .*; need .*; because .+$"):
            evaluate(None, None, [{"prompt": "x", "answer": "1"}], **arguments)


@pytest.mark.parametrize("scores", [[1.0], [1.0] * 3, [[1.0, 0.0]], 1.0, []])
def test_a_verifier_gives_every_response_its_score(monkeypatch, scores):
    monkeypatch.setattr(module, "sample_texts", lambda *arguments, **keywords: [["a", "b"]])
    with pytest.raises(
        ValueError, match=re.escape(f"score: got shape {np.shape(scores)}; need (2,); because every response has one score")
    ):
        evaluate(None, None, [{"prompt": "x", "answer": "1"}], 2, score=lambda **_: scores)
