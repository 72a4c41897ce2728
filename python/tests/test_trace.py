"""Traces contain the record's values as arrays."""

import numpy as np
import pytest
from conftest import PENCILS

import uqac


@pytest.fixture(scope="module")
def trace(model) -> uqac.Trace:
    return model.trace(PENCILS, trace=True)


def test_shapes_are_as_documented(model, trace):
    n, rows = len(trace.logprobs), len(trace.logprobs) + 1
    assert trace.n_instr == trace.result.n_instr and len(trace.input_ids) == trace.n_instr + n
    assert trace.input_ids.tolist() == trace.result.input_ids and trace.logprobs.tolist() == trace.result.logprobs
    assert (trace.logprobs.dtype, trace.attention.dtype) == (np.float64, np.float32)
    assert trace.entropies.shape == (rows,) and trace.head_ids.shape == trace.head_entropies.shape
    assert trace.head_ids.shape == (rows, min(16, model.info["num_layers"] * model.info["num_attention_heads"]))
    assert trace.attention.shape == (len(trace.rows), len(trace.input_ids))
    assert not trace.logprobs.flags.writeable


def test_rows_of_the_chain_are_the_records(trace):
    heads_of = dict(zip(trace.rows.tolist(), trace.attention))
    for row in trace.result.record["trace"]:
        position = trace.n_instr + row["row"]
        weights = heads_of[position]
        assert [[int(i), float(weights[i])] for i, _ in row["top"]] == [[i, pytest.approx(w, rel=1e-6)] for i, w in row["top"]]
        assert weights.max() == weights[row["top"][0][0]]
        assert trace.head_ids[row["row"] + 1].tolist() == row["heads"]
        assert (weights[position + 1 :] == 0).all(), "a row sees nothing after it"
    assert trace.chain["row"].tolist() == [link["row"] for link in trace.result.chain]
    assert trace.kept.tolist() == trace.result.kept
    assert trace.ensemble["position"][0] == -1 and len(trace.ensemble) == len(trace.result.record["ensemble"])


def test_p_is_the_sum_over_the_ensemble(trace):
    joint = np.exp(trace.ensemble["log_answer"] + trace.ensemble["log_chain"])
    assert trace.result.scores["p_sim"] == pytest.approx(joint[0], rel=1e-12)


def test_the_most_probable_alternative_of_a_greedy_response_is_its_token(trace):
    for row in range(len(trace.logprobs)):
        ids, logprobs = trace.alternatives(row)
        assert ids[0] == trace.input_ids[trace.n_instr + row] and logprobs[0] == trace.logprobs[row]
        assert len(ids) >= 5 and (np.diff(logprobs) <= 0).all()
        # the entropy of the whole distribution is bounded below by these tokens' terms, and above by spreading the rest evenly
        p = np.exp(logprobs)
        assert trace.entropies[row] >= -(p * logprobs).sum() - 1e-9


def test_any_rows_of_a_response_that_exists(model, trace):
    result = trace.result
    prompt, response = result.input_ids[: result.n_instr], result.input_ids[result.n_instr :]
    rows = [result.n_instr - 1, result.n_instr + 4, len(result.input_ids) - 1]
    some = model.trace(prompt, response, rows=rows)
    every = model.trace(PENCILS, result.response, rows="all")
    assert some.rows.tolist() == rows and len(every.rows) == len(response) + 1
    for position, weights in zip(rows, some.attention):
        assert (every.attention[every.rows.tolist().index(position)] == weights).all()
    assert (every.logprobs == trace.logprobs).all() and (every.head_ids == trace.head_ids).all()
    with pytest.raises(uqac.Error, match="rows: expected positions from"):
        model.trace(prompt, response, rows=[0])
    with pytest.raises(ValueError, match="rows: expected positions"):
        model.trace(prompt, response, rows="none")


def test_heads_and_layers(model, trace):
    recorded = model.trace(PENCILS, heads=True, layers=True, hidden=True)
    rows, layers, heads = len(trace.logprobs) + 1, model.info["num_layers"], model.info["num_attention_heads"]
    assert recorded.heads.shape == (rows, layers, heads) and recorded.layer_means.shape[0] == layers + 1
    # the selected heads were selected by these entropies
    flat = recorded.heads["entropy"].reshape(rows, -1)
    for row in range(rows):
        assert flat[row][recorded.head_ids[row]].tolist() == pytest.approx(recorded.head_entropies[row].tolist(), rel=1e-5)
    shares = np.stack([recorded.heads[name] for name in ("own", "previous", "first", "prompt")])
    assert (shares >= 0).all() and (shares <= 1 + 1e-5).all() and np.isfinite(recorded.layer_means).all()
    # the last row is in none of the means
    assert recorded.hidden_states.shape[0] == rows
    assert recorded.hidden_states[:-1].mean(axis=0).tolist() == pytest.approx(recorded.layer_means[-1].tolist(), rel=1e-4, abs=1e-5)
    assert trace.heads.size == 0 and trace.layer_means.size == 0 and trace.hidden_states.size == 0, "where they were not asked for"
