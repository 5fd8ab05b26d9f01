"""A process that only imports verl finds the losses: a fresh interpreter, and a Ray worker."""

from tests.carm_verl.build import RUN  # isort: skip (skips the module where verl is absent)

import importlib.metadata
import os
import subprocess
import sys

import pytest

ASK = "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as R; print('carm' in R)"
BUILD = f"""
import verl
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as R
assert 'carm' not in R
from verl.utils.config import omega_conf_to_dataclass
omega_conf_to_dataclass({{'_target_': 'carm_verl.CARMPolicyLossConfig', 'run': {RUN!r}}})
print('carm' in R)
"""


def fresh(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1", **env}, capture_output=True, text=True, check=False
    )
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr


def test_the_entry_point_is_declared() -> None:
    (entry,) = (e for e in importlib.metadata.entry_points(group="verl.plugins") if e.name == "carm_verl")
    assert entry.value == "carm_verl.plugin"


@pytest.mark.slow
def test_a_fresh_process_that_imports_verl_has_the_losses() -> None:
    assert fresh(ASK) == "True"


@pytest.mark.slow
def test_the_other_ways_in_work_without_the_entry_point() -> None:
    off = {"VERL_USE_EXTERNAL_PLUGINS": "none"}
    assert fresh(BUILD, **off) == "True"
    assert fresh(ASK, VERL_USE_EXTERNAL_MODULES="carm_verl", **off) == "True"


@pytest.mark.slow
def test_importing_the_package_first_is_no_circle() -> None:
    assert fresh("import carm_verl; " + ASK) == "True"


@pytest.mark.slow
def test_a_plugin_that_cannot_load_says_so() -> None:
    """verl logs the failure of a plug-in at DEBUG only; ours is logged as an error by itself."""
    broken = "import sys; sys.modules['carm_core'] = None; import verl; print('imported')"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, check=True)
    assert "NOT registered" in done.stderr and "imported" in done.stdout


@pytest.mark.slow
def test_a_ray_worker_has_the_losses_and_evaluates_one() -> None:
    import ray

    @ray.remote(num_cpus=1)
    class Worker:
        def evaluate(self, run: dict[str, object]) -> tuple[bool, list[float]]:
            import verl.workers.utils.losses
            from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
            from verl.utils.config import omega_conf_to_dataclass

            registered = "carm" in POLICY_LOSS_REGISTRY
            section = {"_target_": "carm_verl.CARMPolicyLossConfig", "tau": 1.02, "run": run}
            actor = {"_target_": "verl.workers.config.FSDPActorConfig", "rollout_n": 8, "ppo_micro_batch_size_per_gpu": 1}
            config = omega_conf_to_dataclass({**actor, "policy_loss": section})
            from carm_verl.dry_run import probe

            loss, metrics = probe(config)
            assert verl.workers.utils.losses.ppo_loss
            return registered, [float(loss), metrics["actor/carm/rejected"]]

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
    try:
        assert ray.get(Worker.remote().evaluate.remote(RUN), timeout=120) == (True, [0.5, 1.0])
    finally:
        ray.shutdown()
