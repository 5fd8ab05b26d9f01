import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta, binomtest, chisquare, kstest

from conformal_core import ConformalBudget, FixedBudget, SignalBudget, replay
from conformal_core.keys import mix64
from experiments.__main__ import main
from experiments.populations import GOLD, Model, Population, WrongAnswers
from experiments.simulate import POLICIES, PRESETS, make_policy, simulate

IDS = mix64(np.arange(4000, dtype=np.uint64))


def test_pass_rates_follow_the_beta_law_and_responses_the_pass_rates():
    people = Population(0.6, 1.4)
    rates = people.pass_rates(IDS)
    assert kstest(rates, beta(0.6, 1.4).cdf).pvalue > 1e-3
    table = people.table(IDS)
    z = (table.passes.sum(1) - 32 * rates) / np.sqrt(32 * rates * (1 - rates)).clip(1e-9)
    inside = (rates > 0.1) & (rates < 0.9)
    assert abs(z[inside].mean()) < 4 / np.sqrt(inside.sum())
    assert abs((z[inside] ** 2).mean() - 1) < 4 * np.sqrt(2 / inside.sum())
    assert (table.passes == (table.codes == GOLD)).all() and (table.gold == GOLD).all()


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (WrongAnswers("uniform", 4), [1 / 4] * 4),
        (WrongAnswers("zipf", 4, exponent=1.0), [12 / 25, 6 / 25, 4 / 25, 3 / 25]),
        (WrongAnswers("dominant", 3, share=0.8), [0.8, 0.1, 0.1]),
        (WrongAnswers("uniform", 1), [1.0]),
        (WrongAnswers("dominant", 1), [1.0]),
    ],
)
def test_wrong_answers_follow_their_law_on_hard_and_on_easy_prompts(wrong, law):
    np.testing.assert_allclose(wrong.probabilities, law)
    people = Population(1, 1, wrong)
    table, rates = people.table(IDS), people.pass_rates(IDS)
    for rows in (rates < 0.5, rates >= 0.5):
        counts = np.bincount(table.codes[rows].ravel(), minlength=wrong.answers + 1)[1:]
        assert len(counts) == wrong.answers
        if wrong.answers > 1:
            assert chisquare(counts, counts.sum() * np.array(law)).pvalue > 1e-3


def test_unsolvable_prompts_agree_on_a_wrong_answer():
    people = Population(unsolvable=0.25, consensus=0.9, learning=1.0, wrong=WrongAnswers("uniform", 2))
    hopeless = people.hopeless(IDS)
    assert binomtest(int(hopeless.sum()), len(IDS), 0.25).pvalue > 1e-3
    for skill in (0.0, 50.0):
        table = people.table(IDS, skill=skill)
        assert not table.passes[hopeless].any() and table.passes[~hopeless].any()
        counts = np.bincount(table.codes[hopeless].ravel(), minlength=3)
        assert counts[GOLD] == 0 and binomtest(int(counts[1]), int(counts.sum()), 0.95).pvalue > 1e-3
    unanimous = replace(people, consensus=1.0).table(IDS)
    assert (unanimous.codes[hopeless] == 1).all()


def test_every_prompt_has_its_own_stream():
    people = Population(unsolvable=0.2)
    table = people.table(IDS[:50], step=3)
    for part in (people.table(IDS[20:21], step=3), people.table(IDS[:50][::-1], step=3).take(np.array([29]))):
        np.testing.assert_array_equal(part.codes[0], table.codes[20])
    np.testing.assert_array_equal(replace(people, k_max=8).table(IDS[:50], step=3).codes, table.codes[:, :8])
    assert (people.table(IDS[:50], step=4).codes != table.codes).any(axis=1).mean() > 0.5
    assert (replace(people, seed=1).table(IDS[:50], step=3).codes != table.codes).any(axis=1).mean() > 0.5


def test_skill_moves_pass_rates_on_the_logit_scale_and_keeps_their_order():
    people = Population(2, 3)
    before, after = people.pass_rates(IDS), people.pass_rates(IDS, skill=0.7)
    np.testing.assert_allclose(after / (1 - after) * (1 - before) / before, np.exp(0.7))


def test_the_model_learns_from_the_signal_it_is_given():
    people = Population(learning=0.5, drift=-0.1, k_max=8)
    model = Model(people)
    (first,) = Model(people).tables(40, 1)
    mixed = replace(first, passes=np.arange(8) % 2 == np.zeros((40, 1), int))
    model.observe(mixed)  # half of K_max right in every group: signal 1
    assert model.skill == pytest.approx(0.4)
    model.observe(mixed.prefix(4))  # half as many responses: signal 1/2
    assert model.skill == pytest.approx(0.55)
    model.observe(mixed.prefix(1))  # no group has both verdicts, nor any that was skipped
    model.observe(mixed.prefix(0))
    assert model.skill == pytest.approx(0.35)


def test_tables_are_sampled_by_the_model_as_it_is():
    people = Population(drift=2.0)
    run = simulate(FixedBudget(32), people, 3000, 3)
    assert run.skill == (2.0, 4.0, 6.0)
    model = Model(people)
    shares = []
    for table in model.tables(1000, 3):
        shares.append(table.passes.mean())
        model.observe(table)
    assert shares[0] < shares[1] < shares[2]
    assert run.report.positives == sum(round(s * 32000) for s in shares)


def test_a_pool_is_seen_again():
    first, second, third = Model(Population()).tables(30, 3, pool=50)
    assert set(second.prompt_ids[20:].tolist()) == set(first.prompt_ids[:10].tolist())
    assert len({i for t in (first, second, third) for i in t.prompt_ids.tolist()}) == 50
    assert (second.codes[20:] != first.codes[:10]).any()  # sampled anew


def test_training_and_calibration_prompts_are_all_distinct():
    model = Model(Population())
    ids = [t.prompt_ids for t in model.tables(500, 3)] + [model.calibration(500, step).prompt_ids for step in range(3)]
    assert len(set(np.concatenate(ids).tolist())) == 3000


def test_the_simulator_runs_the_object_that_trains():
    """The same decisions as :func:`replay` with the same calibration; the signal rule under a model that learns keeps its audit."""
    people = Population()
    policy, twin = (ConformalBudget(delta="0.12", seed=3) for _ in range(2))
    run = simulate(policy, people, 600)
    twin.calibrate(Model(people).calibration(200, 0))
    expected = replay(twin, next(Model(people).tables(600, 1)))
    np.testing.assert_array_equal(run.report.drawn, expected.drawn)
    assert run.report.calibration_rollouts == 6400 and policy.stop_rule == twin.stop_rule
    moving = simulate(SignalBudget(), replace(people, learning=0.2), 4000, 10)
    assert moving.report.steps == 10 and moving.report.audit["lost_group"][1] > 100
    assert moving.metrics["window"] == 200 and moving.report.calibration_rollouts == 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs_on_every_population(name):
    needed = {"fixed": ",k=4", "DynamicSampling": ",prompts=30", "Knapsack": ",n_max=32"}
    for people in PRESETS.values():
        run = simulate(make_policy(name + needed.get(name, "")), people, 60, 2, pool=40)
        assert run.report.n == 60 and len(run.skill) == 2
        json.dumps(run.to_json(), allow_nan=False)


def test_same_arguments_same_figures():
    one, two = (simulate(make_policy("signal"), Population(learning=0.3), 2000, 5) for _ in range(2))
    np.testing.assert_equal(vars(one.report), vars(two.report))


def test_command_line(tmp_path, capsys):
    file = tmp_path / "new" / "out.json"
    arguments = "simulate --population weak --prompts 400 --steps 4 --beta 2,1 --wrong dominant,3,0.7 --unsolvable 0.1 --learning 0.2"
    assert (
        main([*arguments.split(), "--policy", "conformal,score=mass_above,delta=0.2,grid=4-32", "--policy", "signal", "--json", str(file)])
        == 0
    )
    out = capsys.readouterr()
    assert "400 prompts x 32 responses in 4 steps" in out.out and "step 4 of 4" in out.err
    data = json.loads(file.read_text())
    assert data["population"]["a"] == 2 and data["population"]["wrong"]["share"] == 0.7 and data["population"]["unsolvable"] == 0.1
    assert [run["spec"] for run in data["runs"]] == ["conformal,score=mass_above,delta=0.2,grid=4-32", "signal"]
    for run in data["runs"]:
        assert sum(run["report"]["prompts_by_drawn"].values()) == run["report"]["n"] == 400
    assert set(data["runs"][0]["report"]["prompts_by_drawn"]) <= {"4", "32"}


@pytest.mark.parametrize(
    "options",
    [
        "--policy nobody",
        "--policy signal,nothing=3",
        "--policy signal,delta",
        "--policy conformal,score=nothing",
        "--policy conformal,delta=2",
        "--policy fixed,k=33",
        "--policy conformal,grid=2-64",
        "--policy fixed,k=many",
        "--beta 0,1",
        "--beta 1",
        "--wrong normal,3",
        "--wrong uniform,3,1",
        "--wrong zipf,3,1,2",
        "--wrong uniform,0",
        "--unsolvable 1.5",
        "--consensus nan",
        "--drift inf",
        "--k-max 0",
        "--prompts 3 --steps 4",
        "--steps 0",
        "--pool 49",
        "--policy Knapsack",
        "--json /proc/nowhere/out.json",
        "--json /tmp",
        "--wrong zipf,many",
        "--wrong zipf,3,often",
        "--wrong zipf,3,inf",
        "--wrong zipf,99999999999",
        "--k-max 100000000",
        "--beta inf,1",
        "--policy fixed,k=4,k=5",
        "--policy conformal,grid=2-4,grid=2-8",
    ],
)
def test_bad_options_are_refused_in_one_line_before_any_work(options, capsys):
    assert main(["simulate", "--prompts", "50", "--steps", "1", *options.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert "got" in captured.err and "need" in captured.err and "because" in captured.err
