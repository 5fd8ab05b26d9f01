"""The numbers of a report are those of the cores on the same arrays."""

from __future__ import annotations

import numpy as np
import pytest

import carm_core
from carm_core import CARM, OPSM, GeoMean, IcePop, log_ratio, mask_report, paired_decisions, response_scores
from conformal_core import (
    APS,
    ConformalBudget,
    ConformalVote,
    FirstSuccess,
    FixedBudget,
    NestedRollout,
    Outcomes,
    SignalBudget,
    StreamCalibrated,
    clopper_pearson,
    conformal_quantile,
    encode_answers,
    k_mix,
    prompt_ids,
    replay,
    uniforms,
    vote_report,
)
from rollout_logs import audit, audit_budgets, audit_masks, budget_grid, load_groups, plan_files
from rollout_logs.knobs import KNOBS
from rollout_logs.replays import nested_shares


@pytest.fixture
def logged(outcome_rows, write_jsonl, tmp_path):
    rows = outcome_rows(steps=10, prompts=40, size=8)
    return rows, str(write_jsonl(tmp_path / "a.jsonl", rows))


def table_of(rows, size=8):
    """The same groups by hand, in the order of the file."""
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]
    answers = [[r["output"].split("{")[1].split("}")[0] for r in g] for g in groups]
    codes, gold = encode_answers(answers, gold=[g[0]["gts"] for g in groups])
    passes = np.array([[r["score"] > 0.5 for r in g] for g in groups])
    return Outcomes(prompt_ids([g[0]["input"] for g in groups]), passes, codes=codes, gold=gold)


def halves(table, seed=0, n_calibration=200):
    side = uniforms(table.prompt_ids, seed=seed, stream="calibration half") < 0.5
    order = np.argsort(uniforms(table.prompt_ids, seed=seed, stream="calibration draw"), kind="stable")
    return table.take(order[side[order]][:n_calibration]), table.take(np.sort(order[~side[order]]))


def test_groups_are_the_arrays(logged):
    rows, path = logged
    groups, table = load_groups([path]), table_of(rows)
    found = groups.outcomes(np.arange(groups.n), 8)
    for name in ("prompt_ids", "passes", "codes"):
        assert np.array_equal(getattr(found, name), getattr(table, name)), name
    solved = table.passes.any(axis=1)
    assert np.array_equal(found.gold[solved], table.gold[solved])
    assert not (found.codes[~solved] == found.gold[~solved, None]).any()


def test_waste_is_counted_over_all_groups(logged):
    rows, path = logged
    waste, passes = audit_budgets(load_groups([path])).waste, table_of(rows).passes
    idle = passes.all(axis=1) | ~passes.any(axis=1)
    assert (waste.no_signal, waste.all_passed, waste.all_failed) == (idle.sum(), passes.all(axis=1).sum(), (~passes.any(axis=1)).sum())
    assert waste.interval == clopper_pearson(int(idle.sum()), len(passes))
    lengths = np.array([len(r["output"]) for r in rows]).reshape(-1, 8).sum(axis=1)
    assert (waste.unit, waste.token_share) == ("characters", lengths[idle].sum() / lengths.sum())


@pytest.mark.parametrize("delta", ["0.1", "1/4"])
def test_rules_are_replays(logged, delta):
    rows, path = logged
    found = audit_budgets(load_groups([path]), delta=delta)
    calibration, table = halves(table_of(rows))
    grid = budget_grid(8)
    assert (found.n_calibration, found.n_evaluation, found.grid) == (calibration.n, table.n, grid)
    policies = {"fixed G=4": FixedBudget(4), "signal 2-4-8": SignalBudget(grid, delta=delta, window=calibration.n)}
    for m in ("per_budget", "max_rank"):
        policies[f"randomized {m}"] = ConformalBudget(grid, score=APS(), delta=delta, multiplicity=m, n_calibration=calibration.n)
    policies["risk_control"] = ConformalBudget(grid, delta=delta, multiplicity="risk_control", n_calibration=calibration.n)
    for name, policy in policies.items():
        if hasattr(policy, "calibrate") and not name.startswith("fixed"):
            policy.calibrate(calibration)
        expected, result = replay(policy, table), found.rule(name)
        assert result.mean_k[0] == expected.mean_k
        assert result.with_variance == (expected.groups_with_variance / table.n, *expected.intervals["groups_with_variance"])
        if result.family == "fixed":
            continue
        assert result.lost_groups == (expected.lost_groups / table.n, *expected.intervals["lost_groups"])
        cost = 0 if result.family == "signal" else calibration.n * 8 / (50 * 40 * 8)
        assert result.savings_with_calibration == pytest.approx(expected.savings - cost, abs=1e-12)
        mixed = k_mix(table.passes)
        smallest = next((k for k in range(2, 9) if ((mixed > 0) & (mixed <= k)).sum() >= expected.groups_with_variance), None)
        assert result.fixed_equal == smallest
    assert found.fixed_curve[3] == found.rule("fixed G=4").with_variance[0]


def test_too_few_prompts_calibrate_nothing_and_say_so(outcome_rows, write_jsonl, tmp_path):
    found = audit_budgets(load_groups([str(write_jsonl(tmp_path / "a.jsonl", outcome_rows(steps=1, prompts=8)))]))
    assert all(r.family == "fixed" or not r.guarantee.startswith("P(") for r in found.rules)
    assert any("need" in line for line in found.unknown)
    assert found.waste.groups == 8


def test_prompts_of_several_epochs_are_replayed_once(outcome_rows, write_jsonl, tmp_path):
    rows = [r | {"input": r["input"].split("-")[1]} for r in outcome_rows(steps=6, prompts=40)]
    found = audit_budgets(load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))]))
    assert found.waste.groups == 240 and found.n_calibration + found.n_evaluation == 40


def test_a_cap_on_groups_bounds_the_replay_only(logged):
    found = audit_budgets(load_groups([logged[1]]), max_groups=50)
    assert (found.n_evaluation, found.waste.groups) == (50, 400)


def by_hand(rows):
    width = max(len(r["rollout_logprobs"]) for r in rows)

    def pad(name):
        return np.array([r[name] + [0.0] * (width - len(r[name])) for r in rows], np.float64)

    return pad("current_logprobs"), pad("rollout_logprobs"), pad("loss_mask") != 0, pad("old_logprobs")


def test_masks_are_the_rules(token_rows, token_file):
    rows = token_rows()
    current, rollout, mask, old = by_hand(rows)
    z = log_ratio(current, rollout, mask).z
    reward, advantage = (np.array([r[name] for r in rows]) for name in ("reward", "advantage"))
    plans, intake = plan_files([str(token_file)])
    found = audit_masks(plans, intake)
    scores = response_scores(z, mask)
    live = scores.length > 0
    np.testing.assert_allclose(found.scores.d, scores.d, rtol=1e-13)
    for name, rule in {"CARM 1.02": CARM(1.02), "GeoMean 1.005": GeoMean(1.005), "OPSM 0.02": OPSM(0.02)}.items():
        keep = rule.keep(z, mask, advantage)
        result, expected = found.rule(name), mask_report(z, mask, keep, reward)
        assert result.rejected_share == expected.rejected_fraction
        assert result.rejected_tokens == expected.rejected_token_fraction
        assert (result.masked_correct or 0.0) == pytest.approx(expected.rejected_success_fraction)
        assert result.certified == rule.certificate((0.8, 1.28)).p_out
    assert found.paired == paired_decisions(CARM(1.02).keep(z, mask), GeoMean(1.005).keep(z, mask), empty=~live)
    weights = IcePop(0.5, 5.0).weights(z, mask)
    assert found.rule("IcePop 0.5 5.0").rejected_tokens == pytest.approx(1 - np.count_nonzero(weights) / mask.sum())
    noise = response_scores(log_ratio(old, rollout, mask).z, mask).d[live]
    assert found.noise == carm_core.calibrated_tau(noise, "0.05")
    assert found.cancelled == pytest.approx(carm_core.cancellation_share(scores.d, scores.g)[live].mean())
    assert [row[3] for row in found.sweep] == [carm_core.carm_bound(row[0], (0.8, 1.28)) for row in found.sweep]
    for row in found.sweep:
        assert row[1] == carm_core.rejection_curve(scores.d, [row[0]], empty=~live)[0]


def test_sweeps_are_the_rules_at_every_threshold(token_rows, token_file):
    rows = token_rows()
    current, rollout, mask, _ = by_hand(rows)
    z = log_ratio(current, rollout, mask).z
    reward, advantage = (np.array([r[name] for r in rows]) for name in ("reward", "advantage"))
    found = audit(token_file, masks={"sweeps": {"TRM": (0.001, 0.02)}}).masks.thresholds
    assert {r.rule for r in found} == set(KNOBS) and {r.threshold for r in found if r.rule == "TRM" and r.how == "swept"} == {0.001, 0.02}
    live = mask.any(axis=1)
    for r in found:
        rule = KNOBS[r.rule].make(r.threshold)
        assert r.certified == rule.certificate((0.8, 1.28)).p_out
        if r.rule == "IcePop":
            assert r.rejected_tokens == pytest.approx(1 - np.count_nonzero(rule.weights(z, mask)) / mask.sum())
            continue
        gone = live & ~rule.keep(z, mask, advantage)
        tie = r.how == "calibrated" and r.rule not in ("CARM", "GeoMean")  # scores are kept in single precision
        assert r.rejected_share == pytest.approx(gone.sum() / live.sum(), abs=1 / live.sum() if tie else 0), r
        if not tie:
            assert r.rejected_tokens == mask[gone].sum() / mask.sum()
            assert r.masked_correct == (None if not gone.any() else (reward[gone] > 0).mean())


def test_calibrated_thresholds_spare_noise_by_each_rules_own_score(token_rows, token_file):
    rows = token_rows()
    _, rollout, mask, old = by_hand(rows)
    scores = response_scores(log_ratio(old, rollout, mask).z, mask)
    live = scores.length > 0
    found = {r.rule: r for r in audit(token_file).masks.thresholds if r.how == "calibrated"}
    expected = {"TRM": scores.max_k2, "TRMMean": scores.mean_k3, "MeanExpAbs": scores.mean_exp_abs - 1, "GeoMean": scores.geomean}
    expected["SeqMIS"] = scores.g * scores.length
    for name, values in expected.items():
        quantile = conformal_quantile(values[live], "0.05").value
        assert KNOBS[name].edge(found[name].threshold) == pytest.approx(quantile, rel=1e-6), name
        assert KNOBS[name].edge(found[name].threshold) >= np.float32(quantile) * (1 - 1e-12)
    assert found["CARM"].threshold == audit(token_file).masks.noise.tau


def test_early_nested_and_stream_calibration_cost_what_they_draw(outcome_rows, write_jsonl, tmp_path):
    rows = outcome_rows(steps=10, prompts=80, size=8)
    found = audit_budgets(load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))]), delta="0.2", n_calibration=150)
    calibration, table = halves(table_of(rows), n_calibration=150)
    grid = budget_grid(8)
    draws = [next((k for k in grid if row[:k].any()), 8) for row in calibration.passes]
    assert found.rule("first_success bonferroni").calibration_rollouts == sum(draws)
    assert found.rule("randomized bonferroni").calibration_rollouts == 8 * calibration.n
    nested = found.rule("randomized nested bonferroni")
    shares = nested_shares(grid, "0.2", calibration.n)
    assert nested.calibration_rollouts == replay(NestedRollout(grid, shares), calibration).drawn.sum() < 8 * calibration.n
    stream = found.rule("first_success stream bonferroni")
    assert stream.calibration_rollouts == 0 and stream.savings_with_calibration == stream.savings[0]
    inner = ConformalBudget(grid, score=FirstSuccess(), delta="0.2", multiplicity="bonferroni", n_calibration=calibration.n)
    policy = StreamCalibrated(inner)
    policy.update(calibration)
    assert stream.mean_k[0] == replay(policy, table).mean_k


def test_votes_report_what_they_bound(logged):
    rows, path = logged
    found = audit_budgets(load_groups([path]), delta="0.2")
    calibration, table = halves(table_of(rows))
    for loss in ("differs", "worse"):
        vote = ConformalVote(budget_grid(8), delta="0.2", loss=loss, n_calibration=calibration.n)
        vote.calibrate(calibration)
        expected = vote_report(vote, table)
        result = found.rule(f"vote {loss}")
        assert result.differs == (expected.differs / expected.n, *expected.differs_interval)
        assert result.mean_k[0] == expected.mean_k and result.wrong_stops[0] == pytest.approx(1 - expected.right / expected.n)


def test_kept_responses_obey_the_certificate(token_file):
    found = audit(token_file).masks
    for rule in found.rules:
        assert rule.worst_kept <= rule.certified + 1e-7


def test_recommended_tau_spares_noise_or_says_it_cannot(token_rows, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for scale in (1.0, 30.0):
        rows = token_rows()
        for row in rows:
            row["rollout_logprobs"] = [o + scale * (r - o) for r, o in zip(row["rollout_logprobs"], row["old_logprobs"], strict=True)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        found = audit(tmp_path / "a.parquet").masks
        assert found.recommended_tau == max(found.noise.tau, carm_core.tau_for_certificate(0.1, (0.8, 1.28)))
        assert ("noise floor: a smaller one" in found.recommended_why) == (scale > 1)


def test_examples_are_the_most_cancelled(token_rows, token_file):
    rows = token_rows()
    current, rollout, mask, _ = by_hand(rows)
    z = log_ratio(current, rollout, mask).z
    scores = response_scores(z, mask)
    among = np.flatnonzero(GeoMean(1.005).keep(z, mask) & ~CARM(1.02).keep(z, mask))
    expected = among[np.argsort(-(scores.d - scores.geomean)[among])][:6] + 1
    found = [e for e in audit(token_file).masks.examples if e.why.startswith("kept by GeoMean")]
    assert [e.row for e in found] == expected.tolist()
    first = found[0]
    assert first.tokens == tuple(t for t, m in zip(rows[first.row - 1]["tokens"], rows[first.row - 1]["loss_mask"], strict=True) if m)
    np.testing.assert_allclose(first.z, z[first.row - 1][mask[first.row - 1]], rtol=1e-6)
