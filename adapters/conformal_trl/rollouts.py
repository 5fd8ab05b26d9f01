"""Drawing responses in increments until a rollout policy stops, over any number of processes.

Every process runs the same program on the groups of all of them: it asks the policy the same questions and gets the same answers.
Only drawing and verifying are shared out, evenly and row by row, so no process waits long for another and all make the same
collective calls, whatever stopped where.
"""

from __future__ import annotations

import inspect
import math
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from conformal_core import NOT_DRAWN, Outcomes, RolloutPolicy, encode_answers, prompt_ids

from .checks import checked_counts, prompt_text
from .rows import Group, Response

__all__ = ["Rollouts"]


def _without_gather(method: Any) -> Any:
    """The same function with ``gather`` as the identity: TRL's reward computation on the rows of one process."""
    inner = inspect.unwrap(method)
    scope = {**inner.__globals__, "gather": lambda tensor: tensor}
    return types.FunctionType(inner.__code__, scope, inner.__name__, inner.__defaults__, inner.__closure__)


_local_rewards = _without_gather(GRPOTrainer._calculate_rewards)


class Rollouts:
    """Draws and verifies responses with a trainer's model, engine and reward functions."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        #: Rows, tool calls and failed tool calls since the step began, as TRL counts them, over all processes.
        self.tool_use = [0.0, 0.0, 0.0]

    def roll_out(
        self, examples: Sequence[dict[str, Any]], policy: RolloutPolicy, step: int, batch_size: int, bar: Any = None
    ) -> tuple[list[Group], Outcomes]:
        """Draw responses for every example until ``policy`` stops each of them; the same result on every process."""
        groups = [Group(example) for example in examples]
        ids = prompt_ids([prompt_text(e["prompt"]) for e in examples])
        live = np.arange(len(groups))
        counts = checked_counts(policy, policy.first(ids, step), np.zeros(len(groups), np.int64))
        while counts.any():
            self.draw([groups[i] for i in np.repeat(live, counts)], batch_size, bar)
            live = live if policy.whole_batch else live[counts > 0]
            outcomes = self.outcomes([groups[i] for i in live], ids[live], step)
            counts = checked_counts(policy, policy.more(outcomes), outcomes.drawn)
        return groups, self.outcomes(groups, ids, step)

    def draw(self, rows: Sequence[Group], batch_size: int, bar: Any = None) -> None:
        """One more response for every entry of ``rows`` (a group may occur several times), verified once.

        Each process draws its share, padded by at most one row that is thrown away, so that all call the engine alike.
        """
        accelerator, ledger = self.trainer.accelerator, self.trainer.ledger
        world, rank = accelerator.num_processes, accelerator.process_index
        for start in range(0, len(rows), batch_size * world):
            chunk = rows[start : start + batch_size * world]
            share = math.ceil(len(chunk) / world)
            mine = chunk[rank * share : (rank + 1) * share]
            padded = [*mine, *[chunk[-1]] * (share - len(mine))]
            with ledger.phase("generate"):
                responses, fields = self._respond([g.example for g in padded])
            with ledger.phase("reward"):
                everywhere = any(isinstance(f, torch.nn.Module) for f in self.trainer.reward_funcs)
                scored = share if everywhere else len(mine)
                if scored:
                    examples = [{**g.example, **f} for g, f in zip(padded[:scored], fields, strict=False)]
                    self._verify(examples, responses[:scored])
            ledger.add(reward_calls=len(chunk), discarded=share * world - len(chunk))
            answered = gather_object(responses[: len(mine)]) if world > 1 else responses
            self._refuse_infinite(answered)
            for group, response in zip(chunk, answered, strict=True):
                group.responses.append(response)
            if bar is not None:
                bar.update(len(chunk))

    def _respond(self, examples: Sequence[dict[str, Any]]) -> tuple[list[Response], list[dict[str, Any]]]:
        """One response per example through TRL's own ``_generate``: engine, ``rollout_func``, chat template and tool loop alike."""
        trainer = self.trainer
        if trainer.tools:
            named = {asynchronous: {} for asynchronous in (False, True)}
            for tool in trainer.tools:
                named[inspect.iscoroutinefunction(tool)][tool.__name__] = tool
            trainer._sync_tool_dicts, trainer._async_tool_dicts = [named[False]] * len(examples), [named[True]] * len(examples)
        prompts = [e["prompt"] for e in examples]
        with self._unlogged() as logged:
            tokens, ids, masks, completions, logps, extra, _, _ = trainer._generate(prompts)
        if trainer.tools:
            rows = len(examples) * trainer.accelerator.num_processes
            calls = logged["tools/call_frequency"][-1] * rows
            failures = logged["tools/failure_frequency"][-1] * calls
            self.tool_use = [a + b for a, b in zip(self.tool_use, (rows, calls, failures), strict=True)]
        if len(ids) != len(examples) or (logps is not None and [len(x) for x in logps] != [len(x) for x in ids]):
            raise ValueError(
                f"rollout_func: got {len(ids)} completions for {len(examples)} prompts, or logprobs of other lengths; need one completion "
                "a prompt and one log-probability a token; because it is called with one prompt per response wanted"
            )
        if logps is not None:
            logps = [np.array([math.nan if x is None else x for x in row], np.float32) for row in logps]
        responses = [
            Response(
                prompt=np.asarray(tokens[i], np.int64),
                ids=np.asarray(ids[i], np.int64),
                logps=None if logps is None else logps[i],
                mask=None if masks is None else np.asarray(masks[i], np.int64),
                completion=completions[i],
                text=completions[i] if isinstance(completions[i], str) else (completions[i][-1].get("content") or ""),
            )
            for i in range(len(examples))
        ]
        fields = [{k: v[i] if isinstance(v, list) else v for k, v in extra.items()} for i in range(len(examples))]
        return responses, fields

    @contextmanager
    def _unlogged(self) -> Iterator[dict[str, list[float]]]:
        """TRL's generation metrics count every call alike; ours are written once, over the rows that train or could have.

        Yields what TRL logged within the block.
        """
        trainer = self.trainer
        metrics, seen = trainer._metrics, trainer.state.num_input_tokens_seen
        trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        try:
            yield trainer._metrics["train"]
        finally:
            trainer._metrics, trainer.state.num_input_tokens_seen = metrics, seen

    def _verify(self, examples: Sequence[dict[str, Any]], responses: Sequence[Response]) -> None:
        trainer, args = self.trainer, self.trainer.args
        prompts, completions = [e["prompt"] for e in examples], [r.completion for r in responses]
        scores = _local_rewards(trainer, list(examples), prompts, completions, [r.ids.tolist() for r in responses]).cpu()
        if args.degenerate_tokens:
            short = torch.tensor([len(r.ids) < args.degenerate_tokens for r in responses])
            scores = torch.where(short[:, None], torch.nan, scores)
        totals = trainer.totals(scores).tolist()
        extra = {column: list(values) for column, values in trainer._pending_extra_logs.items()}
        trainer._pending_extra_logs.clear()
        for column, values in extra.items():
            if len(values) != len(responses):
                raise ValueError(
                    f"log_extra: got {len(values)} values of {column!r}; need {len(responses)}; because there is one per completion"
                )
        for i, (example, response) in enumerate(zip(examples, responses, strict=True)):
            response.rewards, response.total = tuple(scores[i].tolist()), totals[i]
            if args.degenerate_tokens and len(response.ids) < args.degenerate_tokens:
                response.total = args.degenerate_reward
            response.passed = trainer.success(example, response)
            response.answer = None if trainer.answer_fn is None else trainer.answer_fn(response.text)
            response.extra = {column: values[i] for column, values in extra.items()}

    def _refuse_infinite(self, responses: Sequence[Response]) -> None:
        for response in responses:
            for name, value in zip(self.trainer.reward_func_names, response.rewards, strict=False):
                if math.isinf(value):
                    raise ValueError(f"reward: got an infinite value from {name}; need finite numbers or None; because they are averaged")

    def outcomes(self, groups: Sequence[Group], ids: np.ndarray, step: int) -> Outcomes:
        """What a policy is shown of these groups."""
        trainer = self.trainer
        drawn = np.array([len(g.responses) for g in groups], np.int64)
        passes = np.zeros((len(groups), max(int(drawn.max(initial=0)), 1)), bool)
        for i, group in enumerate(groups):
            passes[i, : drawn[i]] = [r.passed for r in group.responses]
        codes = gold = None
        if trainer.answer_fn is not None:
            golds = None if trainer.gold_column is None else [g.example.get(trainer.gold_column) for g in groups]
            codes, gold = encode_answers([[r.answer for r in g.responses] for g in groups], golds)
            codes = np.pad(codes, ((0, 0), (0, passes.shape[1] - codes.shape[1])), constant_values=NOT_DRAWN)
        return Outcomes(ids, passes, drawn, codes, gold, step)
