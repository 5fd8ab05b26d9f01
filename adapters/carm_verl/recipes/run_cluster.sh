#!/usr/bin/env bash
# A Ray cluster that is already up (ray start --head; ray start --address=HEAD:6379 on the others), with this package on every node.
# NODES=4 GPUS=8 DATA=/shared/data MODEL=/shared/Qwen3.5-9B RAY_ADDRESS=http://HEAD:8265 bash run_cluster.sh math_9b [overrides...]
set -euo pipefail
recipe=${1:?usage: run_cluster.sh RECIPE [verl overrides...]}
shift
: "${DATA:?a folder that every node sees}" "${NODES:?number of nodes}" "${RAY_ADDRESS:?address of the cluster}"
overrides=("+carm=$recipe" "trainer.nnodes=$NODES" "trainer.n_gpus_per_node=${GPUS:-8}" "$@")
python -m carm_verl dry-run "${overrides[@]}"

# VERL_USE_EXTERNAL_MODULES makes `import verl` import this package in every worker, and fail there if a node lacks it.
env_vars="\"VERL_USE_EXTERNAL_MODULES\": \"carm_verl\", \"DATA\": \"$DATA\""
if [ -n "${MODEL:-}" ]; then env_vars+=", \"MODEL\": \"$MODEL\""; fi
if [ -n "${SANDBOX:-}" ]; then env_vars+=", \"SANDBOX\": \"$SANDBOX\""; fi
exec ray job submit --address "$RAY_ADDRESS" --runtime-env-json "{\"env_vars\": {$env_vars}}" -- \
  python -m verl.trainer.main_ppo "${overrides[@]}"
