#!/usr/bin/env bash
# One node. DATA=/data MODEL=/models/Qwen3.5-4B bash run.sh math_4b [overrides...]    (recipes: math_4b, math_9b, code_9b)
# A baseline: bash run.sh math_4b actor_rollout_ref.actor.policy_loss.loss_mode=geomean actor_rollout_ref.actor.policy_loss.tau=1.005
set -euo pipefail
recipe=${1:?usage: run.sh RECIPE [verl overrides...]}
shift
: "${DATA:?a folder with the parquet files that the recipe names}"
overrides=("+carm=$recipe" "$@")

# Resolves the tree, runs verl's and our checks and evaluates the loss on a small batch, without a GPU and before Ray starts.
python -m carm_verl dry-run "${overrides[@]}"
exec python -m verl.trainer.main_ppo "${overrides[@]}"
