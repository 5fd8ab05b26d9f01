"""The launch recipes resolve in verl's own configuration tree, and the faults of a launch show before it needs a GPU."""

from tests.carm_verl.build import policy_loss  # isort: skip (skips the module where verl is absent)

import re
import subprocess
from pathlib import Path

import pytest
import verl
from hydra import compose, initialize_config_dir, initialize_config_module
from verl.utils.import_utils import load_extern_object

from carm_core import CARM
from carm_verl import rewards
from carm_verl.__main__ import main
from carm_verl.dry_run import dry_run

SECTION, ROLLOUT = "actor_rollout_ref.actor.policy_loss", "actor_rollout_ref.rollout"
pytestmark = pytest.mark.filterwarnings("ignore:Disabled critic")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("SANDBOX", "http://sandbox:8080")


@pytest.mark.parametrize(("recipe", "model", "tau", "n_val"), [
    ("math_4b", "Qwen/Qwen3.5-4B", 1.02, 16), ("math_9b", "Qwen/Qwen3.5-9B", 1.025, 16), ("code_9b", "Qwen/Qwen3.5-9B", 1.025, 1),
])  # fmt: skip
def test_recipes_are_the_papers_table_3(recipe: str, model: str, tau: float, n_val: int) -> None:
    run = dry_run([f"+carm={recipe}"])
    actor, rollout = run.config["actor_rollout_ref"]["actor"], run.config["actor_rollout_ref"]["rollout"]
    assert run.rule == repr(CARM(tau)) and run.config["actor_rollout_ref"]["model"]["path"] == model
    assert (run.config["data"]["train_batch_size"], rollout["n"], actor["ppo_mini_batch_size"], actor["ppo_epochs"]) == (128, 8, 8, 1)
    assert (actor["clip_ratio_low"], actor["clip_ratio_high"], actor["clip_ratio_c"]) == (0.2, 0.28, 3.0)
    assert (actor["optim"]["lr"], run.config["data"]["max_response_length"]) == (3e-6, 16384)
    assert run.config["trainer"]["total_training_steps"] == 120 and rollout["val_kwargs"]["n"] == n_val
    assert run.p_out == CARM(tau).certificate((0.8, 1.28)).p_out
    # One of two responses of 8 tokens is rejected and stays in the denominator of 16: 8 * (-1) * (-1) / 16.
    assert (run.rejected, run.loss) == (1, 0.5)
    assert "optimizer steps of 64 responses" in str(run)


@pytest.mark.parametrize(("overrides", "rejected"), [
    ([f"{SECTION}.loss_mode=geomean", f"{SECTION}.tau=1.005"], 0),
    ([f"{SECTION}.loss_mode=trm", f"{SECTION}.tau=null"], 1),
    ([f"{SECTION}.loss_mode=no_mask", f"{SECTION}.tau=null"], 0),
    ([f"{SECTION}.normalize=retained"], 1),
    (["model_engine=megatron"], 1),
    (["actor_rollout_ref.actor.use_kl_loss=true"], 1),
    (["trainer.v1.trainer_mode=colocate_async", f"{ROLLOUT}.val_kwargs.top_p=0.7", f"{ROLLOUT}.val_kwargs.temperature=0.6"], 1),
])  # fmt: skip
def test_baselines_and_engines_through_the_same_recipe(overrides: list[str], rejected: int) -> None:
    run = dry_run(["+carm=math_4b", *overrides])
    assert run.rejected == rejected
    if "normalize=retained" in overrides[0]:
        assert run.loss == 1.0


def test_a_value_before_the_group_still_overrides_it() -> None:
    assert dry_run([f"{SECTION}.tau=1.03", "+carm=math_4b"]).rule == repr(CARM(1.03))


def test_overrides_that_break_the_comparison_are_caught_wherever_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = ["algorithm.rollout_correction.bypass_mode=false", "trainer.use_v1=false"], [f"{ROLLOUT}.top_p=0.9"]
    after += [f"{ROLLOUT}.temperature=0.6", f"+{ROLLOUT}.engine_kwargs.vllm.logprobs_mode=raw_logprobs"]
    assert main(["dry-run", *before, "+carm=math_4b", *after]) == 1
    error = capsys.readouterr().err
    assert "top_p: got 0.9" in error and "trainer.use_v1: got False" in error and "bypass_mode: got False" in error
    assert "engine_kwargs.vllm.logprobs_mode: got 'raw_logprobs'" in error


@pytest.mark.parametrize(("overrides", "message"), [
    (["+carm=math_4b", f"+{SECTION}.tua=1.03"], "unexpected keyword argument 'tua'"),
    (["+carm=math_4b", f"{SECTION}.tau=0.02"], "did you mean 1.02"),
    (["+carm=math_4b", f"{SECTION}.loss_mode=bypass_mode"], "legacy trainer overwrites"),
    (["+carm=math_4b", f"{SECTION}._target_=verl.workers.config.PolicyLossConfig"], "need a mask"),
    (["actor_rollout_ref.rollout.name=vllm"], "need a mask"),
    (["+carm=math_5b"], "math_5b"),
    (["+carm=math_4b", "data.train_batch_size=4"], "train_batch_size"),
    (["+carm=[]"], "need a mask"),
    (["+carm=math_4b", f"{SECTION}.tua=1.03"], "'tua' is not in struct"),
    (["+carm=math_4b", f"{SECTION}.run.top_p=1", f"{ROLLOUT}.top_p=0.9"], "policy_loss.run.top_p: got 1; need nothing typed"),
])  # fmt: skip
def test_faults_of_a_launch(overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dry-run", *overrides]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("package", "name"), [
    ("fully_async_policy", "fully_async_ppo_trainer"), ("fully_async_policy", "fully_async_ppo_megatron_trainer"),
    ("one_step_off_policy", "one_step_off_ppo_trainer"),
])  # fmt: skip
def test_verls_experimental_trainers_are_refused_by_name(package: str, name: str) -> None:
    """They call `apply_bypass_mode`, which replaces loss_mode in the tree; their own keys show who they are."""
    overrides = ["+carm=default", "hydra.searchpath=[pkg://verl.trainer.config]"]
    folder = Path(verl.__file__).parent / "experimental" / package / "config"
    with initialize_config_dir(str(folder), version_base=None):
        section = compose(name, overrides=overrides).actor_rollout_ref.actor.policy_loss
    with pytest.raises(ValueError, match=r"rollout\.nnodes: got 1; need no such key; because verl\.experimental's fully-async"):
        policy_loss(run=dict(section.run))


def test_an_unset_variable_of_a_recipe_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("DATA")
    assert main(["dry-run", "+carm=math_4b"]) == 1
    assert "'DATA' not found" in capsys.readouterr().err


def test_any_hydra_program_knows_the_group() -> None:
    """Hydra reads +group=option of a group that it does not find as a new key: verl would then train without a mask."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=["+carm=math_4b"])
        assert "carm" not in config and config.actor_rollout_ref.actor.policy_loss.loss_mode == "carm"
        assert compose("ppo_trainer", overrides=["+crm=math_4b"]).crm == "math_4b"


def test_scripts_parse_and_name_recipes_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert policy_loss().tau is None
    for script in ("run.sh", "run_cluster.sh"):
        subprocess.run(["bash", "-n", str(folder / script)], check=True)
        for recipe in re.findall(r"\b(?:math|code)_\w+b\b", (folder / script).read_text()):
            assert (folder / "carm" / f"{recipe}.yaml").exists(), recipe


def test_losses_lists_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "carm", "carm_negative", "geomean", "trm", "opsm", "no_mask",
    ]  # fmt: skip


def test_the_reward_that_the_recipe_names_is_found_by_verl_and_graded_by_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    where = dry_run(["+carm=math_4b"]).config["reward"]["custom_reward_function"]
    score = load_extern_object(where["path"], where["name"])
    seen = []
    monkeypatch.setattr(rewards, "compute_score", lambda response, gold: seen.append((response, gold)) or 1)
    assert score(data_source="math_dapo", solution_str=r"so \boxed{3}", ground_truth="3", extra_info={}, reward_router_address=None) == 1.0
    assert seen == [(r"so \boxed{3}", "3")]
