"""Every format, and every way a log can be broken: read, or refused by file, row and column; nothing vanishes."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from rollout_logs import NothingToAudit, audit, audit_masks, find_logs, guess_schema, load_groups, parse_map, plan_files
from rollout_logs.cells import ANSWER_RULES, choose_answer_rule, extract_answer


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def problems(intake):
    return [(p.row, p.column, p.what) for p in intake.problems]


@pytest.mark.parametrize(
    ("rows", "framework"),
    [
        ([{"prompt": "p", "completion": "a", "reward": r, "step": 1, "advantage": r - 0.5} for r in (0, 1)], "trl"),
        ([{"input": "p", "output": "a", "score": r, "step": 1, "gts": "x"} for r in (0, 1)], "verl"),
        (
            [{"input_prompt": "p", "output_response": "a", "score": [0.0, r], "env_extras": {"ground_truth": "x"}} for r in (0.0, 1.0)],
            "skyrl",
        ),
        (
            [{"example_id": 3, "completion": [{"role": "assistant", "content": "a"}], "reward": r, "advantage": 0.1} for r in (0, 1)],
            "prime-rl",
        ),
        ([{"prompt": "p", "response": "a", "reward": r} for r in (0, 1)], "rows"),
        ([{"prompt_id": "p", "rewards": [0, 1]}], "rows"),
        ([{"prompt": "p", "completion": ["a", "b"], "rewards": [0, 1]}], "rows"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "json"])
def test_schemas_are_guessed(tmp_path, rows, framework, kind):
    path = tmp_path / f"log.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(lines(rows) if kind == "jsonl" else json.dumps(rows), encoding="utf-8")
    groups = load_groups([str(path)])
    assert groups is not None, plan_files([str(path)])[1]
    assert (groups.n, groups.size.tolist(), groups.solved.tolist(), groups.signal.tolist()) == (1, [2], [0.5], [True])
    assert any(f"read as {framework}:" in note for note in groups.intake.notes)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2"])
def test_compressed_lines(tmp_path, outcome_rows, suffix):
    rows = outcome_rows(steps=2, prompts=5, size=4)
    with pa.output_stream(str(tmp_path / f"a.jsonl{suffix}"), compression="detect") as out:
        out.write(lines(rows).encode())
    groups = load_groups([str(tmp_path)])
    assert groups.responses.n == 40 and groups.n == 10


def test_map_reaches_into_structs_and_wins(tmp_path):
    rows = [{"q": "p", "y": "a", "extra_info": {"answer": "5", "ok": {"v": v}}} for v in (1, 0)]
    path = tmp_path / "a.jsonl"
    path.write_text(lines(rows), encoding="utf-8")
    mapped = parse_map(["prompt=q", "answer=extra_info.answer", "reward=extra_info.ok.v"])
    groups = load_groups([str(path)], mapped)
    assert groups.solved.tolist() == [0.5] and (groups.responses.answer != 0).all()
    for bad in (["prompt"], ["nobody=x"], ["prompt="]):
        with pytest.raises(ValueError, match="map: got"):
            parse_map(bad)
    with pytest.raises(ValueError, match="map: got reward=nowhere"):
        load_groups([str(path)], {"reward": "nowhere"})


def test_rows_that_are_no_rows_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    good = {"prompt": "p", "reward": 1.0}
    raw = [
        json.dumps(good).encode(),
        b'{"prompt": "p", "rew',
        b"",
        b"[1, 2]",
        b'{"prompt": "\xff", "reward": 0}',
        json.dumps(good | {"reward": 0.0}).encode(),
    ]
    path.write_bytes(b"\n".join(raw))
    groups = load_groups([str(path)])
    assert groups.responses.n == 2 and groups.solved.tolist() == [0.5]
    assert [(p.row, p.what) for p in groups.intake.problems] == [
        (2, "not valid JSON (a line cut short?)"),
        (4, "not a JSON object"),
        (5, "not UTF-8"),
    ]
    assert groups.intake.rows == groups.intake.used + groups.intake.unread == 5


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_cells_without_verdict_are_named(tmp_path, kind):
    rows = [{"prompt": p, "reward": r} for p, r in [("p", 1.0), ("p", None), (None, 1.0), ("p", float("nan")), ("p", 0.0)]]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text(lines(rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    groups = load_groups([str(path)])
    assert sorted(problems(groups.intake)) == [(2, "reward", "no reward"), (3, "prompt", "no prompt"), (4, "reward", "no reward")]
    assert groups.solved.tolist() == [0.5] and groups.intake.used == 2


def test_mixed_types_and_words(tmp_path):
    values = [True, "1.0", "False", "maybe", 0]
    path = tmp_path / "a.jsonl"
    path.write_text(lines([{"prompt": "p", "reward": v} for v in values]), encoding="utf-8")
    groups = load_groups([str(path)])
    assert problems(groups.intake) == [(4, "reward", "no number: 'maybe'")]
    assert groups.solved.tolist() == [0.5]


def test_truncated_parquet_is_named_and_the_rest_is_read(tmp_path, outcome_rows):
    pq.write_table(pa.Table.from_pylist(outcome_rows()), tmp_path / "1.parquet")
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[: len(whole) // 2])
    groups = load_groups([str(tmp_path)])
    assert groups.responses.n == 1440
    [problem] = groups.intake.problems
    assert problem.file.endswith("2.parquet") and "cannot be read" in problem.what


def test_gzip_cut_short_keeps_what_came_before(tmp_path, outcome_rows):
    raw = gzip.compress(lines(outcome_rows(steps=60, prompts=200)).encode(), compresslevel=1)
    (tmp_path / "a.jsonl.gz").write_bytes(raw[: len(raw) - 2000])
    groups = load_groups([str(tmp_path)])
    assert 0 < groups.responses.n < 96000
    assert any("to the end" in p.what or "not valid JSON" in p.what for p in groups.intake.problems)


def test_nothing_to_read_says_why(tmp_path):
    schema = pa.schema([("prompt", pa.string()), ("reward", pa.float64())])
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.jsonl").write_text('{"loss": 1.0}\n')
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 3}')
    with pytest.raises(NothingToAudit) as caught:
        audit(tmp_path)
    intake = caught.value.intake
    assert {p.file.rsplit("/", 1)[-1]: p.what for p in intake.problems} == {
        "a.parquet": "0 rows: nothing to read",
        "b.jsonl": "0 rows: nothing to read",
    }
    assert [line.rsplit("/", 1)[-1].split(":")[0] for line in intake.set_aside] == ["notes.txt", "c.jsonl", "trainer_state.json"]
    with pytest.raises(ValueError, match="paths: got"):
        audit(tmp_path / "missing")
    with pytest.raises(NothingToAudit, match="name them with --map"):
        audit(tmp_path / "c.jsonl")
    with pytest.raises(NothingToAudit, match="unknown type"):
        audit(tmp_path / "notes.txt")


def test_files_in_natural_order_and_once(tmp_path):
    for name in ("10.jsonl", "2.jsonl", "sub/1.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"prompt": "p", "reward": 1}\n')
    logs, _ = find_logs([str(tmp_path), str(tmp_path / "*.jsonl")])
    assert [log.path.removeprefix(str(tmp_path) + "/") for log in logs] == ["2.jsonl", "10.jsonl", "sub/1.jsonl"]


def test_steps_come_from_file_names_where_rows_have_none(tmp_path):
    for step in (3, 12):
        (tmp_path / f"rollouts_{step}.jsonl").write_text(lines([{"prompt": "p", "reward": r} for r in (0, 1)]))
    groups = load_groups([str(tmp_path)])
    assert groups.step.tolist() == [3, 12] and groups.size.tolist() == [2, 2]


def test_duplicate_prompts_are_several_groups(tmp_path, write_jsonl):
    rows = [{"prompt": p, "reward": float(i % 2), "step": 1} for p in ("a", "a", "b", "c") for i in range(4)]
    groups = load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))])
    assert groups.size.tolist() == [4] * 4
    assert any("several times" in note for note in groups.intake.notes)


def test_interleaved_responses_are_gathered(tmp_path, write_jsonl, outcome_rows):
    rows = outcome_rows(steps=2, prompts=10, size=4)
    expected = load_groups([str(write_jsonl(tmp_path / "a" / "x.jsonl", rows))])
    order = np.random.default_rng(0).permutation(len(rows))
    mixed = load_groups([str(write_jsonl(tmp_path / "b" / "x.jsonl", [rows[i] for i in order]))])

    def key(g):
        return sorted(zip(g.step.tolist(), g.prompt.tolist(), g.size.tolist(), g.solved.tolist(), g.signal.tolist(), strict=True))

    assert key(mixed) == key(expected)
    assert any("do not lie together" in note for note in mixed.intake.notes)


def test_unicode_prompts_stay_apart(tmp_path, write_jsonl):
    rows = [{"prompt": p, "reward": 1.0, "step": 1} for p in ("é", "e\u0301", "日本", "😀", " é")]
    assert load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))]).n == 5
    lone = tmp_path / "b.jsonl"
    lone.write_text('{"prompt": "\\ud83d", "reward": 1}\n{"prompt": "\\ud83d\\ude00", "reward": 1}\n')
    assert load_groups([str(lone)]).n == 2


@pytest.mark.parametrize(
    ("text", "rule", "answer"),
    [
        (r"x \boxed{\frac{1}{2}} y", "boxed", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{ 1,000.50 }", "boxed", "1000.5"),
        (r"\boxed{never closed", "boxed", None),
        ("work\n#### $42$.", "hashes", "42"),
        ("<answer> -0 </answer>", "tag", "0"),
        ("The answer is **12.0**", "phrase", "12"),
        ("first 3, then 007", "last-number", "7"),
        ("  a   b ", "completion", "a b"),
        ("anything", "none", None),
        (None, "boxed", None),
    ],
)
def test_answers(text, rule, answer):
    assert rule in ANSWER_RULES
    assert extract_answer(text, rule) == answer


def test_answer_rule_is_chosen_by_what_is_there():
    assert choose_answer_rule([r"\boxed{1}"] * 2 + ["x"]) == "boxed"
    assert choose_answer_rule(["579", "12"]) == "completion"
    assert choose_answer_rule(["long text without any answer in it"] * 3) == "none"


def test_schema_shows_rewards_of_a_trl_table():
    names = ["step", "prompt", "completion", "accuracy_reward", "format_reward", "advantage"]
    schema = guess_schema(dict.fromkeys(names), ["step", "accuracy_reward", "format_reward", "advantage"])
    assert schema.rewards == ("accuracy_reward", "format_reward")
    assert "reward <- accuracy_reward + format_reward" in schema.show()


def test_a_threshold_of_the_user_wins_over_a_logged_verdict(tmp_path, write_jsonl):
    rows = [{"prompt": "p", "reward": r, "acc": True, "step": 1} for r in (0.2, 0.9)]
    path = str(write_jsonl(tmp_path / "a.jsonl", rows))
    assert load_groups([path]).solved.tolist() == [1.0]
    assert load_groups([path], pass_threshold=0.5).solved.tolist() == [0.5]


def test_rows_with_lists_are_named_by_the_row_of_the_file(tmp_path, write_jsonl):
    rows = [{"prompt": "p", "rewards": [0, 1]}, {"prompt": None, "rewards": [1, 1]}, {"prompt": "q", "rewards": [1, None, 0]}]
    groups = load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))])
    assert sorted(problems(groups.intake)) == [(2, "prompt", "no prompt")] * 2 + [(3, "rewards", "no reward")]
    assert groups.solved.tolist() == [0.5, 0.5]


def test_bytes_that_are_no_text_cost_their_row_only(tmp_path):
    good = b'{"prompt": "p", "completion": "c", "reward": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(good + b'{"prompt": "p", "completion": "\xa1", "reward": 1}\n' + good)
    groups = load_groups([str(tmp_path)])
    assert problems(groups.intake) == [(2, None, "not UTF-8")] and groups.intake.used == 2


@pytest.mark.parametrize("completion", ["a", ["a", "b"]])
def test_empty_lists_of_rewards_are_named(tmp_path, write_jsonl, completion):
    rows = [{"prompt": "p", "completion": completion, "rewards": r} for r in ([0, 1], [], [1, 1])]
    groups = load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))])
    assert problems(groups.intake) == [(2, "rewards", "no reward")]


def test_lines_that_lose_their_columns_are_counted(tmp_path, token_rows):
    rows = token_rows(30)
    padding = "x" * 200_000  # so that the rows without log-probabilities fill blocks of their own
    path = tmp_path / "a.jsonl"
    path.write_text(lines(rows) + lines([{"reward": 1.0, "note": padding}] * 60))
    plans, intake = plan_files([str(path)])
    found = audit_masks(plans, intake)
    assert found.responses + found.empty + intake.counts["an empty cell where a list was due"] == 90 == intake.rows


def test_repeats_are_dropped_beside_files_of_another_kind(tmp_path, write_jsonl):
    table = [{"prompt": f"p{i // 2}", "completion": f"c{i}", "reward": float(i % 2), "advantage": i % 2 - 0.5} for i in range(8)]
    for step in (1, 2):
        write_jsonl(tmp_path / f"completions_{step}.jsonl", [{"step": step} | row for row in table])
    write_jsonl(tmp_path / "other.jsonl", [{"input": "p9", "output": "c", "score": float(i), "step": 1} for i in (0, 1)])
    groups = load_groups([str(tmp_path)])
    assert groups.responses.n == 10 and groups.n == 5
    assert any("advantage: only some files" in note for note in groups.intake.notes)


def test_processes_read_what_one_reads(tmp_path, write_jsonl, outcome_rows, monkeypatch):
    for i in range(2):
        write_jsonl(tmp_path / f"{i}.jsonl", outcome_rows(seed=i, steps=2, prompts=10))
    one = load_groups([str(tmp_path)], jobs=1)
    monkeypatch.setattr("rollout_logs.workers._PARALLEL_FROM", 0)
    two = load_groups([str(tmp_path)], jobs=2)
    assert np.array_equal(one.prompt, two.prompt) and np.array_equal(one.solved, two.solved)
    assert one.intake == two.intake


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_small_streams_that_break_off_keep_what_came_before(tmp_path, outcome_rows, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    rng = np.random.default_rng(0)
    rows = [row | {"output": rng.bytes(30).hex()} for row in outcome_rows(steps={".zst": 8}.get(suffix, 2), prompts=60)]
    with pa.output_stream(str(path), compression="detect") as out:
        out.write(lines(rows).encode())
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 3 // 4])
    if suffix == ".bz2":  # a bz2 block is all or nothing
        with pytest.raises(NothingToAudit):
            audit(path)
        return
    groups = load_groups([str(path)])
    assert 0.4 * len(rows) < groups.responses.n < len(rows)
    assert any("to the end" in p.what for p in groups.intake.problems)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("\n".join(["{}"] * 0 + ["hello"] * 5).encode(), "none of its first"),
        ('{"prompt": "p", "reward": 1}\n'.encode("utf-16"), "not UTF-8"),
        (b"\n\n\n", "0 rows"),
        (b"", "0 rows"),
    ],
)
def test_files_that_hold_no_rows_say_why(tmp_path, raw, why):
    (tmp_path / "a.jsonl").write_bytes(raw)
    with pytest.raises(NothingToAudit, match=why):
        audit(tmp_path / "a.jsonl")


def pair(**change):
    return [
        {"prompt": "p", "completion": "c", "reward": r, "step": 1} | {k: v(r) if callable(v) else v for k, v in change.items()}
        for r in (0, 1)
    ]


@pytest.mark.parametrize(
    "value",
    [str, lambda r: f" {r}.0 ", bool, lambda r: 10**40 * r, lambda r: -(10**300) * (1 - r), lambda r: [r, 0.5], lambda r: 2 * r - 1],
)
def test_rewards_in_any_dress_give_one_verdict(tmp_path, write_jsonl, value):
    groups = load_groups([str(write_jsonl(tmp_path / "a.jsonl", pair(reward=value)))])
    assert (groups.solved.tolist(), groups.signal.tolist()) == ([0.5], [True])


@pytest.mark.parametrize(
    "type_", [pa.decimal128(21, 2), pa.float16(), pa.uint8(), pa.dictionary(pa.int8(), pa.float64()), pa.large_string()]
)
def test_reward_columns_of_any_type(tmp_path, type_):
    rewards = pa.array([0, 1])
    rewards = (
        rewards.cast(pa.string()).cast(type_)
        if type_ == pa.large_string()
        else (rewards.cast(pa.float64()).dictionary_encode() if pa.types.is_dictionary(type_) else rewards.cast(type_))
    )
    pq.write_table(pa.table({"prompt": ["p", "p"], "reward": rewards}), tmp_path / "a.parquet")
    assert load_groups([str(tmp_path)]).solved.tolist() == [0.5]


def test_rewards_that_are_no_numbers_are_counted_by_kind(tmp_path, write_jsonl):
    rows = pair() + [{"prompt": "p", "reward": v} for v in ("a", "b", {"acc": 1.0}, float("inf"), 10**400)]
    groups = load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))])
    assert groups.intake.counts == {"no number": 2, "no number (a struct: name a field, e.g. --map ROLE=reward.acc)": 1, "not finite": 2}
    assert groups.solved.tolist() == [0.5] and groups.intake.rows == groups.intake.used + groups.intake.unread == 7


def test_rewards_of_several_functions_are_summed_as_found_or_as_named(tmp_path, write_jsonl):
    rows = [{"prompt": "p", "right_reward": r, "format_reward": 1.0, "n": 3} for r in (0.0, 1.0)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert load_groups([str(path)]).responses.reward.tolist() == [1.0, 2.0]
    named = load_groups([str(path)], parse_map(["reward=right_reward+n"]))
    assert named.responses.reward.tolist() == [3.0, 4.0]
    with pytest.raises(ValueError, match=r"map: got reward=right_reward\+nowhere"):
        load_groups([str(path)], parse_map(["reward=right_reward+nowhere"]))


def test_a_trl_reward_function_named_accuracy_is_a_reward_too(tmp_path):
    columns = {"step": [1, 1], "prompt": ["p", "p"], "completion": ["a", "b"], "accuracy": [0.0, 1.0], "format": [1.0, 0.0]}
    pq.write_table(pa.table(columns | {"advantage": [0.0, 0.0]}), tmp_path / "a.parquet")
    groups = load_groups([str(tmp_path)])
    assert groups.responses.reward.tolist() == [1.0, 1.0] and groups.solved.tolist() == [0.5] and groups.signal.tolist() == [False]


def test_a_field_that_a_struct_lacks_is_refused(tmp_path):
    pq.write_table(pa.Table.from_pylist([{"prompt": "p", "reward": {"acc": 1.0}}]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"map: got reward=reward\.none; need one of .*reward\.acc"):
        load_groups([str(tmp_path / "a.parquet")], {"reward": "reward.none"})


def test_odd_steps_are_told_once_a_file(tmp_path, write_jsonl):
    rows = [row | {"step": step} for step in (1e25, None) for row in pair()]
    notes = load_groups([str(write_jsonl(tmp_path / "a_7.jsonl", rows))]).intake.notes
    assert len([n for n in notes if "count as step 7" in n]) == 1


def test_runs_in_different_folders_do_not_share_groups_nor_kinds_their_scale(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "a" / "1.jsonl", pair())
    write_jsonl(tmp_path / "b" / "1.jsonl", pair())
    write_jsonl(tmp_path / "b" / "2.jsonl", [{"input": "p", "output": "c", "score": r, "step": 1} for r in (0.0, 100.0)])
    groups = load_groups([str(tmp_path)])
    assert (groups.size.tolist(), groups.solved.tolist()) == ([2, 2, 2], [0.5] * 3)
    assert any("3 kinds or places (2 folders" in note for note in groups.intake.notes)
    assert len([n for n in groups.intake.notes if n.startswith("passed: reward above")]) == 2


def test_stray_rewards_move_no_threshold(tmp_path, write_jsonl):
    rows = [{"prompt": f"p{i // 4}", "reward": float(i % 4 == 0)} for i in range(800)]
    rows[1]["reward"], rows[2]["reward"] = -1000.0, 1e30
    groups = load_groups([str(write_jsonl(tmp_path / "a.jsonl", rows))])
    assert groups.passes.sum() == 201
    assert any("above 0.5, the middle of [0, 1], where all but a few of [-1000, 1e+30] lie" in n for n in groups.intake.notes)
    rare = [{"prompt": f"p{i // 4}", "reward": float(i == 0)} for i in range(800)]
    assert load_groups([str(write_jsonl(tmp_path / "b.jsonl", rare))]).passes.sum() == 1


def test_steps_may_be_folders(tmp_path, write_jsonl):
    for step in (3, 12):
        write_jsonl(tmp_path / f"step_{step}" / "rollouts.jsonl", [{"prompt": "p", "reward": r} for r in (0, 1)])
    assert load_groups([str(tmp_path)]).step.tolist() == [3, 12]


def test_rewards_with_many_values_leave_a_doubt(tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "reward": r} for r in (0.0, 0.3, 1.0)])
    assert any("Which responses are correct" in line for line in audit(path).unknown())
    assert not any("Which responses are correct" in line for line in audit(write_jsonl(tmp_path / "b.jsonl", pair())).unknown())


# -- token-level files ------------------------------------------------------------------------------------------------------


def padded(rows):
    width = max(len(r["current_logprobs"]) for r in rows)
    out = {name: np.zeros((len(rows), width), np.float32) for name in ("current_logprobs", "rollout_logprobs")}
    mask = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        for name, values in out.items():
            values[i, : len(row[name])] = row[name]
        mask[i, : len(row["loss_mask"])] = row["loss_mask"]
    return out | {"loss_mask": mask, "reward": np.array([r["reward"] for r in rows]), "advantage": np.array([r["advantage"] for r in rows])}


def flat(rows):
    out = {name: np.concatenate([np.asarray(r[name], np.float32) for r in rows]) for name in ("current_logprobs", "rollout_logprobs")}
    lengths = np.array([len(r["current_logprobs"]) for r in rows])
    return out | {
        "loss_mask": np.concatenate([np.asarray(r["loss_mask"], np.int32) for r in rows]),
        "reward": np.array([r["reward"] for r in rows]),
        "advantage": np.array([r["advantage"] for r in rows]),
    }, lengths


def test_every_token_format_gives_the_same_scores(tmp_path, token_rows):
    rows = token_rows(80)
    narrow = [
        {k: np.asarray(v, np.float32).tolist() if k.endswith("logprobs") else v for k, v in r.items() if k != "old_logprobs"} for r in rows
    ]
    packed, lengths = flat(narrow)
    pq.write_table(pa.Table.from_pylist(narrow), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(lines(narrow))
    np.savez(tmp_path / "c.npz", **padded(narrow))
    np.savez_compressed(tmp_path / "d.npz", **packed, lengths=lengths)
    save_file(padded(narrow), tmp_path / "e.safetensors")
    save_file(packed | {"cu_seqlens": np.concatenate([[0], np.cumsum(lengths)])}, tmp_path / "f.safetensors")
    found = []
    for name in ("a.parquet", "b.jsonl", "c.npz", "d.npz", "e.safetensors", "f.safetensors"):
        plans, intake = plan_files([str(tmp_path / name)])
        result = audit_masks(plans, intake)
        assert result is not None and not intake.problems, (name, intake)
        found.append(result)
    for other in found[1:]:
        assert np.array_equal(other.scores.length, found[0].scores.length)
        np.testing.assert_allclose(other.scores.d, found[0].scores.d, rtol=1e-12)
        assert np.array_equal(other.scores.bits, found[0].scores.bits)
        assert other.rules == found[0].rules


def test_a_token_row_is_named_once_by_what_it_holds(tmp_path, write_jsonl):
    good = {"current_logprobs": [-1.0], "rollout_logprobs": [-1.0]}
    rows = [
        good,
        {"current_logprobs": "x", "rollout_logprobs": 3},
        good | {"rollout_logprobs": [[-1.0]]},
        good | {"current_logprobs": [10**400]},
    ]
    plans, intake = plan_files([str(write_jsonl(tmp_path / "a.jsonl", rows))])
    assert audit_masks(plans, intake).responses == 1
    assert intake.counts == {"no list of numbers": 3} and intake.rows == intake.used + intake.unread == 4
    assert [p.row for p in sorted(intake.problems, key=lambda p: p.row)] == [2, 3, 4]


@pytest.mark.parametrize("lengths", [[40, -5], [7, 7, 7]])
def test_lengths_that_do_not_fit_the_tokens_are_refused(tmp_path, lengths):
    z = np.zeros(35, np.float32)
    np.savez(tmp_path / "a.npz", current_logprobs=z, rollout_logprobs=z, lengths=np.array(lengths))
    with pytest.raises(NothingToAudit, match="lengths"):
        audit(tmp_path / "a.npz")


@pytest.mark.parametrize("header", [b"[]", b"{}x", b'{"a": 1}', b'{"a": {"dtype": "F32"}}'])
def test_a_damaged_safetensors_header_is_named(tmp_path, header):
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(NothingToAudit, match=r"a\.safetensors: cannot be read"):
        audit(tmp_path / "a.safetensors")


def test_broken_token_rows_are_named(tmp_path):
    rows = [
        {"current_logprobs": [-1.0, -2.0], "rollout_logprobs": [-1.0, -2.0]},
        {"current_logprobs": None, "rollout_logprobs": [-1.0]},
        {"current_logprobs": [-1.0, -2.0], "rollout_logprobs": [-1.0]},
        {"current_logprobs": [-1.0, float("nan")], "rollout_logprobs": [-1.0, -1.0]},
        {"current_logprobs": [], "rollout_logprobs": []},
    ]
    for kind in ("parquet", "jsonl"):
        path = tmp_path / f"a.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text(lines(rows))
        plans, intake = plan_files([str(path)])
        found = audit_masks(plans, intake)
        assert problems(intake) == [
            (2, "current_logprobs", "an empty cell where a list was due"),
            (3, "current_logprobs", "lists of different lengths: 2 values for 1 in rollout_logprobs"),
        ]
        assert (found.responses, found.empty, found.nonfinite) == (2, 1, 1)
        assert found.rule("CARM 1.02").rejected == 1


def test_bfloat16_safetensors(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    z = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], dtype=torch.bfloat16)
    save_torch({"current_logprobs": z, "rollout_logprobs": z - 0.25}, tmp_path / "a.safetensors")
    plans, intake = plan_files([str(tmp_path)])
    found = audit_masks(plans, intake)
    expected = (z.float() - (z - 0.25).float()).abs().mean(1).double().numpy()
    np.testing.assert_array_equal(found.scores.d, expected)
