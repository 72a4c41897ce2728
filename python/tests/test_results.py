"""Results match the command line's bit for bit."""

import inspect
import json
import pickle
import sys

import pytest
from conftest import APPLES, PENCILS

import uqac


def without_speed(record):
    return {key: value for key, value in record.items() if key != "tokens_per_second"}


@pytest.mark.parametrize(
    "flags, options",
    [
        ([], {}),
        (["--temperature", "0.75", "--seed", "5", "--top-k", "20"], {"temperature": 0.75, "seed": 5, "top_k": 20}),
        (["--profile", "reference"], {"profile": "reference"}),
        (["--rule", "threshold=at-least", "--trace", "wide"], {"rules": {"threshold": "at-least"}, "wide_trace": True}),
        (["--system", "Be brief."], {"system": "Be brief."}),
        (["--ensemble", "off"], {"ensemble": False}),
        (["--stop-below", "-0.001", "--running", "entropy", "--window", "4"], {"stop_below": -0.001, "running": "entropy", "window": 4}),
        (["--no-chat-template", "--max-tokens", "9"], {"chat_template": False, "max_tokens": 9}),
        (["--samples", "3", "--seed", "4"], {"samples": 3, "seed": 4}),
    ],
)
def test_ask_is_uqac_ask(model, program, flags, options):
    expected = json.loads(program("ask", "--json", "--device", "cpu", "-m", "abacus", *flags, PENCILS))
    assert without_speed(model.ask(PENCILS, **options).to_dict()) == without_speed(expected)


def test_parameters_are_in_the_record_and_have_their_own_calibration(model, program):
    found = model.ask(PENCILS, parameters={"k": 8, "theta": 0.7}).to_dict()
    assert found["parameters"] == {"k": 8, "theta": 0.7} and found["confidence"] is None
    expected = json.loads(program("ask", PENCILS, "--json", "--device", "cpu", "-m", "abacus", "--set", "k=8", "theta=0.7"))
    assert without_speed(found) == without_speed(expected)


def test_score_is_uqac_score(model, program):
    asked = model.ask(PENCILS)
    span = asked.answer_span
    items = [
        {"id": "text", "prompt": PENCILS, "response": asked.response},
        {"id": "messages", "messages": [{"role": "user", "content": PENCILS}], "response": "It is \\boxed{28}."},
        {"id": "ids", "input_ids": asked.input_ids, "n_instr": asked.n_instr, "answer_span": list(span)},
        {"id": "none", "prompt": PENCILS, "response": "I do not know."},
        {"id": "bad", "prompt": PENCILS},
    ]
    lines = "".join(json.dumps(item) + "\n" for item in items)
    output = program("score", "-m", "abacus", "--device", "cpu", "-i", "-", "-o", "-", "--explain", given=lines)
    expected = [json.loads(line) for line in output.splitlines()]
    found = [result.to_dict() for result in model.score_many(items, progress=False, trace=True)]
    assert [record["status"] for record in found] == ["ok", "ok", "ok", "no_answer", "error"]
    expected[-1]["error"] = expected[-1]["error"].removeprefix("line 5: ")
    assert found == expected


def test_a_response_has_the_same_bits_asked_or_scored_by_text_or_by_tokens(model):
    asked = model.ask(PENCILS)
    prompt, response = asked.input_ids[: asked.n_instr], asked.input_ids[asked.n_instr :]
    for scored in [
        model.score(PENCILS, asked.response),
        model.score([{"role": "user", "content": PENCILS}], asked.response),
        model.score(prompt, response),
        model.score(prompt, response, answer_span=asked.answer_span),
    ]:
        assert (scored.scores, scored.chain, scored.answer) == (asked.scores, asked.chain, asked.answer)
    assert prompt == model.encode(PENCILS) and model.decode(response).startswith(asked.response)


def test_batches_are_as_one_by_one_and_in_order(model, capsys):
    questions = [PENCILS, "What is 17 + 25?", APPLES, [{"role": "user", "content": PENCILS}], "What is 4 * 6?"]
    one_by_one = [without_speed(model.ask(question).to_dict()) for question in questions]
    for batch_size in (1, 3):
        found = model.ask_many(questions, batch_size=batch_size)
        assert [without_speed(result.to_dict()) for result in found] == one_by_one
    assert "5/5" in capsys.readouterr().err
    alone, together = ([without_speed(result.to_dict()) for result in model.ask_many(questions, samples=2, batch_size=size)] for size in (1, 7))
    assert alone == together and all(len(found["samples"]["answers"]) == 2 for found in alone)
    with pytest.raises(ValueError, match="samples: expected at most 128"):
        model.ask(PENCILS, samples=129)


def test_what_is_wrong_with_one_question_is_its_own(model):
    found = model.ask_many(["What is 1 + 1?", "word " * 200_000, APPLES], progress=False)
    assert [result.status for result in found] == ["ok", "error", "ok"]
    alone = [without_speed(model.ask(question).to_dict()) for question in ("What is 1 + 1?", APPLES)]
    assert [without_speed(result.to_dict()) for result in found[::2]] == alone
    assert "max_position_embeddings" in found[1].error and found[1].error == str(found[1])


def test_tokens_come_with_running_scores(model):
    generation = model.generate(PENCILS)
    tokens = list(generation)
    result = generation.result()
    assert without_speed(result.to_dict()) == without_speed(model.ask(PENCILS).to_dict())
    assert "".join(token.text for token in tokens) == result.response
    assert [token.id for token in tokens] == result.input_ids[result.n_instr :]
    assert [token.logprob for token in tokens] == result.logprobs
    total, least = 0.0, 0.0
    for token in tokens:
        total, least = total + token.logprob, min(least, token.logprob)
        assert token.response_logprob == total
        assert token.min_token_prob == pytest.approx(pow(2.718281828459045, least), rel=1e-14)


def test_the_running_confidence_stops_a_response(model):
    measured = list(model.generate(PENCILS, running="entropy", window=4))
    assert [token.running for token in measured[:3]] == [None] * 3
    entropies = model.trace(PENCILS).entropies
    assert [token.running for token in measured[3:]] == pytest.approx(
        [-entropies[i - 3 : i + 1].mean() for i in range(3, len(measured))], abs=1e-12
    )
    least = min(token.running for token in measured[3:])
    stopped = model.ask(PENCILS, running="entropy", window=4, stop_below=least + 1e-9)
    at = [token.running for token in measured].index(least)
    assert stopped.finish_reason == "unsure" and len(stopped.logprobs) == at + 1


def test_a_generation_that_is_left_stops(model):
    for token in model.generate(PENCILS, max_tokens=100):
        assert token.logprob <= 0.0
        break
    assert model.ask("What is 17 + 25?").answer == "42"


def test_results_show_themselves(model):
    result = model.ask(PENCILS)
    part, page = result._repr_html_(), result.to_html()
    assert part in page and page.startswith("<!doctype html>") and "<script" not in page
    assert part.count('class="answer"') >= 2, "one in the legend, the others in the response"
    assert result.response in str(result) and "p_sim" in str(result)
    assert "Result(status='ok', answer='29'" in repr(result)
    hostile = model.score("Say it.", "<script>alert(1)</script> The answer is \\boxed{7}.")
    assert "<script" not in hostile.to_html() and "&lt;" in hostile.to_html()


def test_confidence_is_a_calibrated_probability_or_none(model):
    result = model.ask(PENCILS)
    assert 0 < result.confidence < 1 and result.p == result.scores["p"]
    assert result.confidence_from in result.scores and not result.out_of_range and not result.abstained
    assert set(result.calibration) == {"tasks", "n", "ece"}
    other = model.ask(PENCILS, profile="paper")
    assert other.confidence is None and other.confidence_from is None and other.calibration is None
    assert "ranking scores, not probabilities" in str(other) and "<meter" in result.to_html() and "<meter" not in other.to_html()
    assert model.ask(PENCILS, abstain=True).abstained is False
    withheld = model.ask(PENCILS, abstain=True, max_tokens=3)
    assert withheld.abstained and withheld.response == "" and withheld.withheld["response"]
    assert "no final answer" in withheld.withheld["why"] and "is withheld" in str(withheld) and "is withheld" in withheld.to_html()
    with pytest.raises(ValueError, match="abstain"):
        model.generate(PENCILS, abstain=True)
    with pytest.raises(uqac.Error, match="the model has no calibration"):
        model.ask(PENCILS, abstain=True, profile="paper")


def test_errors_are_exceptions_with_the_engines_messages(model, tmp_path):
    with pytest.raises(uqac.Error, match="config.json is missing"):
        uqac.load(tmp_path)
    with pytest.raises(ValueError, match="device: expected auto, cpu, cuda, cuda:N or reference"):
        uqac.load("abacus", device="gpu")
    with pytest.raises(TypeError, match=r"ask\(\) has no option max_token; did you mean max_tokens\?"):
        model.ask("1 + 1?", max_token=3)
    with pytest.raises(ValueError, match="max_tokens: expected a number ≥ 1"):
        model.generate("1 + 1?", max_tokens=0)
    with pytest.raises(ValueError, match="valid names: k, theta"):
        model.ask("1 + 1?", rules={"heads": "1"})
    with pytest.raises(ValueError, match="k: expected a number of heads from 1 to 32, found \"64\""):
        model.ask("1 + 1?", parameters={"k": 64})
    for field, value in [("name", "Al"), ("reasoning_content", "hm"), ("tool_calls", [{"id": "1"}]), ("prefix", True)]:
        messages = [{"role": "user", "content": "1 + 1?", field: value}]
        with pytest.raises(uqac.Error, match=rf"messages\[0\]\.{field}: the model's chat template does not read it"):
            model.ask(messages)
        with pytest.raises(uqac.Error, match=field):
            model.score(messages, "2")
    with pytest.raises(uqac.Error, match=r"input_ids\[1\]: expected a token id"):
        model.score([1, -2], [3])
    with pytest.raises(uqac.Error, match="answer_span: expected"):
        model.score([1, 2], [3, 4], answer_span=(0, 9))
    with pytest.raises(uqac.Error, match="cannot read token 4000000: it has embeddings for the ids below"):
        model.score([1, 2], [4_000_000, 4])
    with pytest.raises(ValueError, match="answer_span"):
        model.score("1 + 1?", "2", answer_span=(0, 1))


def test_names_of_transformers_and_an_empty_question(model):
    for name, ours in [("max_new_tokens", "max_tokens"), ("do_sample", "temperature"), ("stop_strings", "stop")]:
        with pytest.raises(TypeError, match=f"has no option {name}; transformers' name, here: {ours}"):
            model.ask_many([PENCILS], **{name: 3})
    for question in ["", " \n"]:
        with pytest.raises(ValueError, match="the question is empty"):
            model.ask(question)


def test_text_parts_are_a_text(model):
    parts = [{"role": "user", "content": [{"type": "text", "text": PENCILS}]}]
    assert model.encode(parts) == model.encode(PENCILS)


def test_options_are_in_the_signature_and_their_defaults_are_the_engines(model):
    shown = inspect.signature(model.ask).parameters
    assert "options" not in shown and shown["max_tokens"].default == 1024 and shown["temperature"].annotation is float
    defaults = {name: shown[name].default for name in shown if name not in ("question", "system")}
    assert without_speed(model.ask(PENCILS, **defaults).to_dict()) == without_speed(model.ask(PENCILS).to_dict())
    assert "max_tokens" not in inspect.signature(model.score).parameters


def test_results_pickle(model):
    result = model.ask(PENCILS)
    again = pickle.loads(pickle.dumps(result))
    assert again.to_dict() == result.to_dict() and again.input_ids == result.input_ids and str(again) == str(result)
    assert again.to_html() == result.to_html() and again._repr_html_() == result._repr_html_()
    assert pickle.loads(pickle.dumps(again)).response == result.response
    trace = pickle.loads(pickle.dumps(model.trace(PENCILS)))
    assert trace.result.answer == result.answer and trace.chain["row"].tolist() == [link["row"] for link in result.chain]


def test_results_are_a_table(model):
    pytest.importorskip("pandas", reason="SKIPPED: pandas is not installed")
    items = [{"id": "a", "prompt": PENCILS, "response": "It is \\boxed{29}."}, {"id": "b", "prompt": PENCILS}]
    table = model.score_many(items, progress=False).to_pandas()
    assert list(table["id"]) == ["a", "b"] and list(table["status"]) == ["ok", "error"]
    assert table["p"][0] == model.score(PENCILS, items[0]["response"]).p and "missing field" in table["error"][1]
    assert len(model.ask_many([PENCILS], progress=False).to_pandas()) == 1


def test_own_scores_stand_among_the_others(model):
    def last(trace):
        return trace.logprobs[-1]

    items = [{"prompt": PENCILS, "response": "It is \\boxed{29}."}, {"prompt": PENCILS}]
    plain = model.score_many(items, progress=False)
    found = model.score_many(items, progress=False, scores={"last": last, "nothing": lambda trace: float("nan")})
    assert found[0].scores.items() >= {**plain[0].scores, "last": found[0].logprobs[-1], "nothing": None}.items()
    assert found[0].to_dict()["scores"]["last"] == found[0].logprobs[-1] and found[1].to_dict() == plain[1].to_dict()


def test_progress_is_tqdms_or_a_count(model, monkeypatch, capsys):
    model.ask_many([PENCILS] * 2)
    assert "2/2" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    model.ask_many([PENCILS] * 2)
    assert capsys.readouterr().err == "\r1/2\r2/2\n"
    model.ask_many([PENCILS], progress=False)
    assert capsys.readouterr().err == ""
