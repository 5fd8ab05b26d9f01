"""A run in which the mask would read the wrong numbers does not start."""

from tests.carm_verl.build import RUN, policy_loss  # isort: skip (skips the module where verl is absent)

import pytest
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from carm_core import CARM, OPSM, TRM, GeoMean, NoMask
from carm_verl import LOSSES, CARMPolicyLossConfig, MaskedPolicyLoss, register
from carm_verl.checks import SETTINGS


@pytest.mark.parametrize(("run", "setting"), [
    ({"bypass_mode": False}, "algorithm.rollout_correction.bypass_mode: got False"),
    ({"bypass_mode": None}, "algorithm.rollout_correction.bypass_mode: got None"),
    ({"calculate_log_probs": False}, "actor_rollout_ref.rollout.calculate_log_probs: got False"),
    ({"use_v1": False}, "trainer.use_v1: got False; need true; because the legacy trainer replaces policy_loss.loss_mode"),
    ({"correction_is": "token"}, "algorithm.rollout_correction.rollout_is: got 'token'"),
    ({"correction_rs": "seq_mean_k1"}, "algorithm.rollout_correction.rollout_rs: got 'seq_mean_k1'"),
    ({"correction_loss_type": "reinforce"}, "algorithm.rollout_correction.loss_type: got 'reinforce'"),
    ({"distillation": True}, "distillation.enabled: got True"),
    ({"top_p": 0.95}, "actor_rollout_ref.rollout.top_p: got 0.95"),
    ({"top_k": 50}, "actor_rollout_ref.rollout.top_k: got 50"),
    ({"temperature": 0.0}, "actor_rollout_ref.rollout.temperature: got 0.0"),
    ({"temperature": None}, "actor_rollout_ref.rollout.temperature: got None"),
    ({"temperature": 0.6, "logprobs_mode": "raw_logprobs"}, "actor_rollout_ref.rollout.logprobs_mode: got 'raw_logprobs'"),
    ({"logprobs_mode": "processed_logits"}, "actor_rollout_ref.rollout.logprobs_mode: got 'processed_logits'"),
    (
        {"temperature": 0.6, "engine_logprobs_mode": "raw_logprobs"},
        "actor_rollout_ref.rollout.engine_kwargs.vllm.logprobs_mode: got 'raw_logprobs'; need 'processed_logprobs'",
    ),
    ({"engine_logprobs_mode": "raw_logits"}, "need 'processed_logprobs' or 'raw_logprobs'"),
    ({"experimental": 1}, "rollout.nnodes: got 1; need no such key; because verl.experimental"),
    ({"top_p": 1.5}, "actor_rollout_ref.rollout.top_p: got 1.5"),
    ({"top_p": None}, "actor_rollout_ref.rollout.top_p: got None"),
    ({"calculate_log_probs": None}, "actor_rollout_ref.rollout.calculate_log_probs: got None"),
    ({"use_v1": None}, "trainer.use_v1: got None"),
    ({"temperature": -1.0}, "actor_rollout_ref.rollout.temperature: got -1.0"),
])  # fmt: skip
def test_each_setting_that_breaks_the_comparison_is_named(run: dict[str, object], setting: str) -> None:
    with pytest.raises(ValueError) as raised:
        policy_loss(run=run)
    assert setting in str(raised.value) and str(raised.value).count("because") == 1


@pytest.mark.parametrize("run", [
    {"temperature": 0.6}, {"logprobs_mode": "raw_logprobs"}, {"rollout_name": "sglang", "logprobs_mode": None, "temperature": 0.6},
    {"rollout_name": "trtllm", "logprobs_mode": "raw_logits"}, {"engine_logprobs_mode": "processed_logprobs", "logprobs_mode": None},
    {"top_k": 0}, {"top_k": None}, {"top_p": 1.0}, {"distillation": None},
])  # fmt: skip
def test_settings_that_keep_the_comparison_pass(run: dict[str, object]) -> None:
    assert policy_loss(run=run).rule == CARM(1.02)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ValueError) as raised:
        policy_loss(run={"bypass_mode": False, "top_p": 0.9, "use_v1": False}, rollout_correction={"rollout_rs": "seq_mean_k1"})
    assert str(raised.value).count("\n  ") == 4


def test_a_section_without_the_recipe_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got None; need the settings of the run; because they are filled in by the recipe group"):
        CARMPolicyLossConfig(tau=1.02)
    with pytest.raises(ValueError, match="got no top_k"):
        CARMPolicyLossConfig(run={key: value for key, value in RUN.items() if key != "top_k"})
    with pytest.raises(ValueError, match=r"got top_P; need bypass_mode, .*; because nothing reads another key"):
        CARMPolicyLossConfig(run={**RUN, "top_P": 0.9})
    assert SETTINGS.keys() == RUN.keys()


@pytest.mark.parametrize(("loss_mode", "settings", "message"), [
    ("bypass_mode", {}, "legacy trainer overwrites"),
    ("geo_mean", {}, "GMPO"),
    ("carm", {"tau": 0.02}, "1.02"),
    ("carm", {"delta": 0.1}, "does not read it"),
    ("trm", {"tau": 1.02}, "need none, or delta"),
    ("no_mask", {"tau": 1.02}, "need none"),
    ("trm", {"delta": 0.0}, "delta"),
    ("carm", {"normalize": "kept"}, "normalize"),
    ("carm", {"inert_after": -1}, "inert_after"),
    ("carm", {"normalize": "retained", "run": {"loss_agg_mode": "token-sum"}}, "token-sum"),
])  # fmt: skip
def test_settings_of_the_mask_itself(loss_mode: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_loss(loss_mode, **settings)


def test_defaults_are_the_papers() -> None:
    rules = {name: policy_loss(name).rule for name in LOSSES}
    assert rules == {
        "carm": CARM(1.02), "carm_negative": CARM(1.02, conditioning="negative"), "geomean": GeoMean(1.005), "trm": TRM(0.05),
        "opsm": OPSM(0.5), "no_mask": NoMask(),
    }  # fmt: skip


def test_registering_twice_is_once_and_a_taken_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(POLICY_LOSS_REGISTRY)
    assert register() == tuple(LOSSES) and before == POLICY_LOSS_REGISTRY
    assert all(isinstance(POLICY_LOSS_REGISTRY[name], MaskedPolicyLoss) for name in LOSSES)
    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "carm", lambda: None)
    with pytest.raises(RuntimeError, match="verl overwrites in silence"):
        register()
