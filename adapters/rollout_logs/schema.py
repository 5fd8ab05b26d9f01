"""Which column is what: names that TRL, verl, prime-rl, SkyRL, OpenRLHF and others give, guessed, shown and overridable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["ROLES", "Schema", "guess_schema", "parse_map"]

#: role -> names in order of preference (compared in lower case; dotted names reach into structs).
ROLES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "input_prompt", "input", "prompts", "question", "problem", "query", "messages", "prompt_text"),
    "completion": ("completion", "output_response", "output", "response", "responses", "completions", "generation", "outputs", "text"),
    "step": ("step", "global_step", "global_steps", "train_step", "training_step", "iteration"),
    "group": ("group_id", "group", "uid", "group_uid", "example_id", "problem_id", "prompt_id", "prompt_hash"),
    "passed": ("passed", "pass", "correct", "is_correct", "acc", "accuracy", "success", "solved"),
    "reward": ("reward", "score", "rewards", "total_reward", "final_reward", "scores"),
    "advantage": ("advantage", "advantages"),
    "answer": ("extracted_answer", "parsed_answer", "pred", "prediction", "predicted_answer", "extracted", "model_answer"),
    "gold": (
        "gts",
        "ground_truth",
        "gold",
        "gold_answer",
        "target",
        "solution",
        "answer",
        "label",
        "reward_model.ground_truth",
        "extra_info.answer",
        "env_extras.reward_spec.ground_truth",
        "env_extras.ground_truth",
        "info.answer",
    ),
    "length": ("completion_length", "response_length", "num_tokens", "completion_tokens_count", "output_length", "length"),
    "current_logps": (
        "current_logps",
        "current_logprobs",
        "current_log_probs",
        "trainer_logprobs",
        "log_probs",
        "logprobs",
        "new_log_probs",
        "per_token_logps",
        "policy_logprobs",
    ),
    "rollout_logps": (
        "rollout_logps",
        "rollout_log_probs",
        "rollout_logprobs",
        "sampling_per_token_logps",
        "inference_logprobs",
        "sampling_logprobs",
        "completion_logprobs",
        "behavior_logprobs",
        "vllm_logprobs",
    ),
    "old_logps": ("old_log_probs", "old_logprobs", "old_per_token_logps", "old_logps"),
    "log_ratio": ("log_ratio", "log_ratios", "log_importance_ratio", "z"),
    "token_mask": ("token_mask", "loss_mask", "response_mask", "completion_mask", "action_mask", "mask"),
    "tokens": ("tokens", "token_strings", "response_tokens", "completion_tokens"),
    "token_ids": ("token_ids", "completion_ids", "response_ids", "input_ids", "output_ids"),
    "staleness": ("staleness", "off_policy_steps", "policy_lag", "off_policy_level", "weight_lag"),
    "on_policy": ("on_policy", "is_on_policy"),
    "lengths": ("lengths", "cu_seqlens", "offsets", "seq_lens"),
}
TOKEN_ROLES = ("current_logps", "rollout_logps", "old_logps", "log_ratio", "token_mask", "tokens", "token_ids")
#: Names that TRL gives to what is not a reward in a completions table.
_NOT_A_REWARD = frozenset(
    {"step", "advantage", "completion_length", "images", "image", "index", "seed", "__index_level_0__", "epoch", "rank"}
)


@dataclass(frozen=True)
class Schema:
    """Which column of a file plays which role.

    Attributes
    ----------
    columns : dict of str to str
        ``{role: column}``, dotted where the column lies in a struct.
    rewards : tuple of str
        Columns whose sum is the reward (a TRL table has one per reward function).
    framework : str
        ``"trl"``, ``"verl"``, ``"prime-rl"``, ``"skyrl"`` or ``"rows"``: whose habits apply.
    """

    columns: Mapping[str, str]
    rewards: tuple[str, ...] = ()
    framework: str = "rows"

    @property
    def has_outcomes(self) -> bool:
        """Rows can be grouped and judged."""
        keyed = "prompt" in self.columns or "group" in self.columns
        return keyed and bool(self.rewards or {"passed", "reward", "advantage"} & set(self.columns))

    @property
    def has_tokens(self) -> bool:
        """Rows carry log-ratios."""
        have = set(self.columns)
        return "log_ratio" in have or {"current_logps", "rollout_logps"} <= have or {"old_logps", "rollout_logps"} <= have

    def needed(self) -> list[str]:
        """Top-level columns to read."""
        return sorted({path.split(".")[0] for path in (*self.columns.values(), *self.rewards)})

    def show(self) -> str:
        """One line for people: ``prompt <- input, reward <- score``."""
        shown = [f"{role} <- {path}" for role, path in self.columns.items() if role != "reward" or not self.rewards]
        if self.rewards:
            shown.append(f"reward <- {' + '.join(self.rewards)}")
        return f"{self.framework}: " + ", ".join(shown)


def parse_map(items: Sequence[str]) -> dict[str, str]:
    """``["answer=extra_info.answer"]`` as a mapping; ``ValueError`` for an unknown role or another form."""
    out: dict[str, str] = {}
    for item in items:
        role, sep, path = item.partition("=")
        if not sep or not path or role not in ROLES:
            raise ValueError(f"map: got {item!r}; need ROLE=COLUMN with a role of {', '.join(ROLES)}; because a column plays a known role")
        out[role] = path
    return out


def _paths(columns: Mapping[str, Any]) -> dict[str, str]:
    """Lower-case dotted path -> path as written, from ``{column: nested dict of fields or None}``."""
    out: dict[str, str] = {}

    def walk(prefix: str, fields: Mapping[str, Any]) -> None:
        for name, inside in fields.items():
            path = f"{prefix}{name}"
            out.setdefault(path.lower(), path)
            if isinstance(inside, Mapping):
                walk(path + ".", inside)

    walk("", columns)
    return out


def guess_schema(
    columns: Mapping[str, Any], numeric: Sequence[str] = (), overrides: Mapping[str, str] | None = None, *, complete: bool = False
) -> Schema:
    """Guess the role of every column by its name.

    Parameters
    ----------
    columns : mapping
        ``{name: None or nested mapping of struct fields}``.
    numeric : sequence of str
        Top-level columns of numbers: in a TRL completions table, whatever number is not known otherwise is a reward function; elsewhere,
        without a reward, those named ``*_reward`` or ``reward_*`` are.
    overrides : mapping, optional
        ``{role: column}`` of the user; wins.  ``reward`` may be a sum: ``{"reward": "correct+format"}``.
    complete : bool
        ``columns`` are all there are (parquet), not those of the first rows (JSON): then a field that is not there is an error.

    Raises
    ------
    ValueError
        If an override names a column that does not exist.

    Examples
    --------
    >>> guess_schema({"input": None, "output": None, "gts": None, "score": None, "step": None}).show()
    'verl: prompt <- input, completion <- output, step <- step, reward <- score, gold <- gts'
    """
    paths = _paths(columns)
    chosen: dict[str, str] = {}
    for role, names in ROLES.items():
        for name in names:
            if name in paths and paths[name] not in chosen.values():
                chosen[role] = paths[name]
                break
    if "answer" not in chosen and "gold" in chosen and "gts" not in paths and {"answer", "ground_truth"} <= set(paths):
        chosen["gold"], chosen["answer"] = paths["ground_truth"], paths["answer"]
    summed: tuple[str, ...] = ()
    for role, path in (overrides or {}).items():
        terms = path.split("+")
        if role == "reward" and len(terms) > 1 and path.lower() not in paths and all(t.strip().lower() in paths for t in terms):
            summed = tuple(paths[t.strip().lower()] for t in terms)
            chosen.pop("reward", None)
            continue
        top = next((name for name in columns if name.lower() == path.split(".")[0].lower()), None)
        if path.lower() not in paths and (top is None or (complete and isinstance(columns[top], Mapping))):
            raise ValueError(f"map: got {role}={path}; need one of {', '.join(sorted(paths.values()))}; because the file has those columns")
        chosen = {r: p for r, p in chosen.items() if p != path}
        chosen[role] = paths.get(path.lower(), path)
    known = set(paths)
    schema = Schema(chosen, rewards=summed, framework=_framework(known))
    if "reward" in (overrides or {}):
        return schema
    taken = {path for role, path in chosen.items() if role not in ("passed", "reward")}
    functions: list[str] = []
    if schema.framework == "trl":
        functions = [c for c in numeric if c not in taken and c.lower() not in _NOT_A_REWARD and not re.match(r"^(is_|n_|num_)", c)]
        if "reward" in chosen and chosen["reward"] not in functions:
            functions = [chosen["reward"], *functions]
    elif "reward" not in chosen and "passed" not in chosen:
        functions = [c for c in numeric if c not in taken and re.search(r"^rewards?_|_rewards?$", c.lower())]
    return replace(schema, rewards=tuple(functions)) if functions else schema


def _framework(known: set[str]) -> str:
    if {"step", "prompt", "completion", "advantage"} <= known:
        return "trl"
    if {"input", "output", "score", "step"} <= known:
        return "verl"
    if {"input_prompt", "output_response", "score"} <= known:
        return "skyrl"
    if {"inference_logprobs", "loss_mask"} <= known or ({"example_id", "completion"} <= known and "reward" in known):
        return "prime-rl"
    return "rows"
