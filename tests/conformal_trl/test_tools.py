"""Tools inside ragged groups: TRL's own tool loop, each increment with its log-probabilities; tool tokens train nothing."""

from __future__ import annotations

import types

import numpy as np
import pytest
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset

from conformal_trl import CGRPOTrainer
from conformal_trl.startup import check_processes
from tests.conformal_trl.reference import logps_and_entropy
from tests.conformal_trl.test_true_cost import Scripted

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}"
    "{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}={% endif %}"
)


def test_tool_calls(model, tokenizer, make_config, monkeypatch):
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_schema = {"type": "object"}
    calls = []

    def lookup() -> str:
        """Look a digit up.

        Returns:
            The digit.
        """
        calls.append(1)
        return "7"

    def parsed(tokenizer, ids, prefix=None, tools=None):
        """A response with an odd token sum is a call of the tool."""
        message = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
        called = sum(ids) % 2 == 1
        return {**message, "tool_calls": [{"type": "function", "function": {"name": "lookup", "arguments": {}}}]} if called else message

    monkeypatch.setattr(grpo, "parse_response", parsed)
    rewarded = []

    def reward(completions, completion_ids, **_):
        rewarded.extend(completions)
        return [float(len(c)) for c in completions]

    chat = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{i}+1"}]} for i in range(20)])
    config = make_config(
        4, 4, max_steps=1, max_completion_length=12, max_tool_calling_iterations=1, num_iterations=2, response_mask="carm",
        learning_rate=0.0, prune="none",
    )  # fmt: skip
    trainer = CGRPOTrainer(
        model, reward, config, chat, processing_class=tokenizer, tools=[lookup], rollout_policy=Scripted([4, 2, 3, 4], 4)
    )
    trainer.train()
    (part,) = trainer._buffered_inputs
    totals = trainer.ledger.totals()
    assert calls and len(rewarded) == totals["generated"] == 13
    used = [c for c in rewarded if any(m["role"] == "tool" for m in c)]
    assert used
    logged = trainer.state.log_history[0]
    assert logged["tools/call_frequency"] == pytest.approx(len(calls) / 13) and logged["tools/failure_frequency"] == 0.0
    dead = (part["completion_mask"] == 1) & (part["tool_mask"] == 0)
    assert dead.any(1).sum() == len(used)
    assert totals["trained_tokens"] == int((part["completion_mask"] * part["tool_mask"]).sum())
    for i in range(part["advantages"].numel()):  # the recorded log-probabilities are the policy's, across the tool's answer
        live = part["completion_mask"][i].bool()
        prompt = part["prompt_ids"][i][part["prompt_mask"][i].bool()].tolist()
        own, _ = logps_and_entropy(model, prompt, part["completion_ids"][i][live].tolist())
        written = part["tool_mask"][i][live].bool()
        np.testing.assert_allclose(part["sampling_per_token_logps"][i][live][written], own.detach()[written], atol=2e-5)
    assert totals["masked"] == 0 < totals["masked_of"]


@pytest.mark.parametrize(
    ("mode", "parallel", "fsdp", "refused"), [("server", 1, False, True), ("colocate", 2, False, True), ("colocate", 1, True, True),
                                             ("colocate", 1, False, False)]
)  # fmt: skip
def test_tools_where_processes_generate_together(mode, parallel, fsdp, refused):
    """Two processes that take different numbers of turns would wait for each other for ever."""
    trainer = types.SimpleNamespace(
        tools=[print], use_vllm=True, vllm_mode=mode, vllm_tensor_parallel_size=parallel,
        _dist=types.SimpleNamespace(is_fsdp=fsdp, is_zero3=False), accelerator=types.SimpleNamespace(num_processes=2),
    )  # fmt: skip
    if refused:
        with pytest.raises(ValueError, match="tools: got 1 on 2 processes that generate together"):
            check_processes(trainer)
    else:
        check_processes(trainer)
