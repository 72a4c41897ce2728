"""Inspect evaluates the model inside the package."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest

inspect_ai = pytest.importorskip("inspect_ai", reason="SKIPPED: inspect_ai is not installed")

from conftest import APPLES, PENCILS  # noqa: E402
from inspect_ai.model import ChatMessageSystem, ChatMessageTool, ChatMessageUser, GenerateConfig, get_model  # noqa: E402
from inspect_ai.tool import ToolInfo  # noqa: E402

import uqac  # noqa: E402

TASK = f'''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, includes, mean, scorer
from inspect_ai.solver import generate

@scorer(metrics=[mean()])
def confidence():
    async def score(state, target):
        return Score(value=state.output.metadata["uqac"]["confidence"] or 0.0)
    return score

@task
def problems():
    samples = [Sample(input={PENCILS!r}, target="29"), Sample(input={APPLES!r}, target="13")]
    return Task(dataset=samples, solver=generate(), scorer=[includes(), confidence()])
'''


def generate(question, name="abacus", tools=(), **config):
    """One response; the loop is new, as Inspect's own is in each call of `eval`."""
    model = get_model(f"uqac/{name}", device="cpu")
    return asyncio.run(model.generate(question, tools=list(tools), config=GenerateConfig(**config)))


def test_a_task_from_the_command_line(model, tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    command = [sys.executable, "-m", "inspect_ai", "eval", "task.py", "--model", "uqac/abacus", "-M", "device=cpu", "--log-format", "json"]
    done = subprocess.run([*command, "--log-dir", "logs", "--display", "none"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "logs").glob("*.json")
    log = json.loads(path.read_text())
    assert log["status"] == "success"
    metrics = {score["name"]: score["metrics"] for score in log["results"]["scores"]}
    assert metrics["includes"]["accuracy"]["value"] == 1 and metrics["confidence"]["mean"]["value"] > 0.5
    for sample, question in zip(log["samples"], (PENCILS, APPLES)):
        expected = model.ask(question)
        record = sample["output"]["metadata"]["uqac"]
        assert record == {name: value for name, value in expected.record.items() if name not in ("response", "tokens_per_second")}
        assert record["chain"] and record["scores"]["p"] == expected.p
        assert sample["output"]["completion"] == expected.response and sample["output"]["choices"][0]["stop_reason"] == "stop"
        assert sample["output"]["usage"]["input_tokens"] == expected.n_instr


def test_options_are_asks(model):
    system = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content=APPLES)]
    output = generate(system, max_tokens=5, logprobs=True)
    expected = model.ask(APPLES, system="Be brief.", max_tokens=5)
    assert output.completion == expected.response and output.stop_reason == "max_tokens"
    assert [token.logprob for token in output.choices[0].logprobs.content] == expected.logprobs
    assert generate(APPLES, stop_seqs=["."]).completion == model.ask(APPLES, stop=["."]).response


def test_samples_differ_and_can_be_repeated():
    first, second = (generate(PENCILS, temperature=1.5, max_tokens=24) for _ in range(2))
    seeds = [output.metadata["uqac"]["seed"] for output in (first, second)]
    assert seeds[0] != seeds[1]
    assert generate(PENCILS, temperature=1.5, max_tokens=24, seed=seeds[0]).completion == first.completion


def test_batches_have_the_same_bits(model):
    questions = [f"Ann has {n} apples and buys 8 more. How many apples does she have?" for n in range(5, 12)]
    api = get_model("uqac/abacus", device="cpu", batch_size=3)
    sizes, ask = [], api.api.model._ask
    api.api.model._ask = lambda asked, options: sizes.append(len(asked)) or ask(asked, options)

    async def all_at_once():
        return await asyncio.gather(*(api.generate(question) for question in questions))

    outputs = asyncio.run(all_at_once())
    expected = [model.ask(question) for question in questions]
    assert [output.completion for output in outputs] == [result.response for result in expected]
    assert [output.metadata["uqac"]["scores"] for output in outputs] == [result.scores for result in expected]
    assert sum(sizes) == len(questions) and max(sizes) == 3


def test_a_cancelled_sample_ends(model):
    api = get_model("uqac/abacus", device="cpu", batch_size=2).api
    ask, tokens, began, cancelled = api.model._ask, [], threading.Event(), threading.Event()

    def held(asked, options):
        for event in ask(asked, options):
            began.set()
            assert cancelled.wait(60)
            tokens.append(event)
            yield event

    question = [ChatMessageUser(content=PENCILS)]

    async def cancel():
        sample = asyncio.create_task(api.generate(question, [], "none", GenerateConfig()))
        assert await asyncio.to_thread(began.wait, 60)
        sample.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sample
        cancelled.set()

    api.model._ask = held
    asyncio.run(cancel())
    api.model._ask = ask
    after = asyncio.run(api.generate(question, [], "none", GenerateConfig()))
    assert after.completion == model.ask(PENCILS).response
    assert len(tokens) == 1  # of a response that would have gone on


@pytest.mark.parametrize("option", [{"frequency_penalty": 1.0}, {"num_choices": 2}, {"top_logprobs": 3}, {"reasoning_effort": "low"}])
def test_what_changes_a_response_is_not_dropped(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        generate(APPLES, **option)


def test_what_this_engine_cannot_do_is_named():
    with pytest.raises(ValueError, match="tools"):
        generate(APPLES, tools=[ToolInfo(name="search", description="Searches")])
    with pytest.raises(ValueError, match="tool calls"):
        generate([ChatMessageUser(content=APPLES), ChatMessageTool(content="13", tool_call_id="1")])
    with pytest.raises(uqac.Error, match="context"):
        generate("word " * 3000)
    with pytest.raises(ValueError, match="colour: neither an option of uqac.load nor of Model.ask"):
        get_model("uqac/abacus", colour="red")


def test_a_thought_is_apart_from_the_reply():
    from uqac.inspect_ai import _content

    thought, text = _content("<think>\n3 * 12\n</think>\n\n36", "36")
    assert "3 * 12" in thought.reasoning and text.text == "36"
    (cut_off,) = _content("<think>\n3 *", "")[:1]
    assert "3 *" in cut_off.reasoning
    assert _content("36", "36") == "36"
