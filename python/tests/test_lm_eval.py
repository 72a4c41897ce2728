"""lm-evaluation-harness evaluates the model inside the package."""

import json
import math
import os
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval", reason="SKIPPED: lm-eval is not installed")

from conftest import APPLES, PENCILS  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402

import uqac  # noqa: E402
from uqac.lm_eval import Uqac  # noqa: E402

TASK = """
task: problems
dataset_path: json
dataset_kwargs: {data_files: {test: problems.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n\\n"], max_gen_toks: 96}
filter_list:
  - name: last-number
    filter: [{function: regex, regex_pattern: "(\\\\d+)", group_select: -1}, {function: take_first}]
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def harness():
    return Uqac.create_from_arg_string("model=abacus,device=cpu", {"batch_size": 4, "max_batch_size": None, "device": "cuda:0"})


def requests(kind, *arguments):
    return [Instance(kind, {}, one, index) for index, one in enumerate(arguments)]


def test_a_task_from_the_command_line(tmp_path):
    (tmp_path / "problems.yaml").write_text(TASK)
    lines = [{"question": PENCILS, "answer": "29"}, {"question": APPLES, "answer": "13"}]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "uqac.lm_eval", "--model", "uqac", "--model_args", "model=abacus,device=cpu", "--tasks", "problems"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(
        [*command, "--include_path", ".", "--apply_chat_template", "--output_path", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **offline},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["problems"]["exact_match,last-number"] == 1


def test_generations_are_asks(model, harness):
    chats = [harness.apply_chat_template([{"role": "user", "content": question}]) for question in (PENCILS, APPLES)]
    options = {"until": ["\n\n\n"], "max_gen_toks": 96, "do_sample": False}
    found = harness.generate_until(
        requests("generate_until", (chats[0], options), (APPLES, {"until": "."}), (chats[1], options)), disable_tqdm=True
    )
    assert found[0] == model.ask(PENCILS, max_tokens=96).response
    assert found[1] == model.ask(APPLES, max_tokens=256, stop=["."], chat_template=False).response
    assert found[2] == model.ask(APPLES, max_tokens=96).response


def test_log_likelihoods_are_scores(model, harness):
    expected = model.ask(APPLES, max_tokens=12)
    response = model.decode(expected.input_ids[expected.n_instr :])
    chat = harness.apply_chat_template([{"role": "user", "content": APPLES}])
    pairs = [(chat, response), (chat, " I do not know."), (f"Question: {APPLES}\nAnswer: ", "13")]
    own, other, plain = harness.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    assert math.isclose(own[0], sum(expected.logprobs), rel_tol=1e-12) and own[1]
    assert other[0] < own[0] and not other[1]
    whole = model.encode("".join(pairs[2]), chat_template=False)
    n = len(model.encode(pairs[2][0].rstrip(), chat_template=False))
    assert math.isclose(plain[0], sum(model.score(whole[:n], whole[n:]).logprobs), rel_tol=1e-12)


def test_whole_texts(model, harness, monkeypatch):
    (without_context,) = harness.loglikelihood(requests("loglikelihood", ("", APPLES)), disable_tqdm=True)
    ids = model.encode(APPLES, chat_template=False)
    assert math.isclose(without_context[0], sum(model.score(ids[:1], ids[1:]).logprobs), rel_tol=1e-12)
    (rolling,) = harness.loglikelihood_rolling(requests("loglikelihood_rolling", (APPLES,)))
    assert rolling == without_context[0]
    # windows of ten tokens; the last one overlaps, and each token counts once
    monkeypatch.setitem(harness.model.info, "context", 11)
    (windows,) = harness.loglikelihood_rolling(requests("loglikelihood_rolling", (APPLES,)))
    assert windows != rolling and math.isfinite(windows)


def test_what_cannot_be_done_is_named(harness, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(uqac.Error, match="without context"):
        patched.setattr(harness, "_begin", [])
        harness.loglikelihood(requests("loglikelihood", ("", "a text")), disable_tqdm=True)
    with pytest.raises(uqac.Error, match="gen_prefix"):
        harness.apply_chat_template([{"role": "user", "content": APPLES}], add_generation_prompt=False)
    with pytest.raises(ValueError, match="min_p"):
        harness.generate_until(requests("generate_until", (APPLES, {"min_p": 0.1})), disable_tqdm=True)
