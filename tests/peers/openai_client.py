#!/usr/bin/env python3
"""The `openai` package as a client of `uqac serve`: chat, streaming, log-probabilities, errors.

    python3 -m venv VENV && VENV/bin/pip install openai
    VENV/bin/python tests/peers/openai_client.py --uqac target/release/uqac [--model abacus]

Starts its own server. Every output line is a check that passed; the first failure ends the program. The server's answers are
compared with `uqac ask --json` for the same question.
"""

import argparse
import concurrent.futures
import json
import math
import subprocess

import openai
from serving import Server

QUESTIONS = [f"What is {a} + {b}?" for a, b in [(17, 25), (8, 94), (120, 33), (5, 6), (71, 19), (46, 46)]]
KEY = "a key"


def check(what, holds):
    assert holds, what
    print("ok  ", what)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


def chat(client, model, question, **options):
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(model=model, messages=messages, **{"temperature": 0, **options})


def answers(client, model, program):
    """Chat, many requests concurrently, compared with `ask`."""
    with concurrent.futures.ThreadPoolExecutor(len(QUESTIONS)) as pool:
        replies = list(pool.map(lambda question: chat(client, model, question), QUESTIONS))
    equal = 0
    for question, reply in zip(QUESTIONS, replies):
        printed = subprocess.run([program, "ask", "-m", model, "--json", question], capture_output=True, check=True)
        ask, choice = json.loads(printed.stdout), reply.choices[0]
        same_text = choice.message.content == ask["response"] and choice.finish_reason == ask["finish_reason"]
        g4 = ask["scores"]["g4"] if ask["answer"] else None
        equal += same_text and choice.uqac["scores"]["g4"] == g4 and choice.uqac["confidence"] == ask["confidence"] and choice.uqac["chain"] == ask["chain"]
    check(f"{len(QUESTIONS)} questions at once: texts, confidences and chains of {equal} equal to ask's", equal == len(QUESTIONS))
    usage = replies[0].usage
    check("usage adds up", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens)


def streaming(client, model):
    whole = chat(client, model, QUESTIONS[0], logprobs=True, top_logprobs=3).choices[0]
    text, tokens, uqac, usage = "", [], None, None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in chat(client, model, QUESTIONS[0], logprobs=True, top_logprobs=3, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            tokens += choice.logprobs.content if choice.logprobs else []
            uqac = getattr(choice, "uqac", None) or uqac
    check("a stream's text, log-probabilities and confidence are the whole answer's",
          (text, tokens, uqac) == (whole.message.content, whole.logprobs.content, whole.uqac) and usage.completion_tokens > 0)
    check("tokens joined are the text", "".join(token.token for token in tokens) == text)
    check("a greedy token is the most probable of its alternatives",
          all(token.logprob == token.top_logprobs[0].logprob and len(token.top_logprobs) == 3 for token in tokens))
    stopped = chat(client, model, QUESTIONS[0], stop=text[4:7]).choices[0]
    check("a stop string ends the text", (stopped.message.content, stopped.finish_reason) == (text[: text.index(text[4:7])], "stop"))
    with chat(client, model, QUESTIONS[0], stream=True, n=64, temperature=1) as stream:
        next(iter(stream))
    check("a stream that is left early leaves the server well", chat(client, model, QUESTIONS[0]).choices[0].message.content == text)


def samples(client, model):
    drawn = chat(client, model, QUESTIONS[2], temperature=1.5, n=8, seed=3)
    again = chat(client, model, QUESTIONS[2], temperature=1.5, n=8, seed=3)
    texts = [choice.message.content for choice in drawn.choices]
    check("a seed repeats samples", texts == [choice.message.content for choice in again.choices])
    check("samples differ", len(set(texts)) > 1)
    scored = chat(client, model, QUESTIONS[2], extra_body={"uqac": {"scores": ["answer_prob", "answer_mean"], "explain": True}})
    uqac = scored.choices[0].uqac
    check("further scores come where they are asked for", list(uqac["scores"]) == ["answer_prob", "answer_mean"] and uqac["ensemble"])


def completions(client, model):
    written = client.completions.create(model=model, prompt="What is 3 + 4?\n", max_tokens=16, temperature=0, logprobs=2)
    choice = written.choices[0]
    echoed = client.completions.create(model=model, prompt="What is 3 + 4?\n" + choice.text, max_tokens=0, temperature=0, logprobs=2, echo=True)
    scored = echoed.choices[0].logprobs.token_logprobs
    count = len(choice.logprobs.tokens) - (choice.finish_reason == "stop")
    check("a text scored by echo has its generation's log-probabilities", scored[-count:] == choice.logprobs.token_logprobs[:count])
    check("log-probabilities are those of probabilities", all(0 < math.exp(p) <= 1 for p in scored[1:]) and scored[0] is None)


def errors(client, server, model):
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="another")
    check("another key", refused(openai.AuthenticationError, lambda: chat(stranger, model, "x")).code == "invalid_api_key")
    check("another model's name", chat(client, "gpt-4", "x", max_tokens=1).model == model)
    check("an unknown field", refused(openai.BadRequestError, lambda: chat(client, model, "x", extra_body={"min_p": 0.1})).param == "min_p")
    check("a field out of range", refused(openai.BadRequestError, lambda: chat(client, model, "x", temperature=3)).param == "temperature")
    check("tools", refused(openai.BadRequestError, lambda: chat(client, model, "x", tools=[{"type": "function"}])).param == "tools")
    long = refused(openai.BadRequestError, lambda: chat(client, model, "1 " * 200_000))
    check("a prompt beyond the context", long.code == "context_length_exceeded")
    check("the models", [found.id for found in client.models.list()] == [model] and client.models.retrieve(model).id == model)


def crowd(program, model):
    """More clients than slots: rejected ones retry automatically, after Retry-After."""
    with Server(program, model, "--max-batch", "2", "--queue", "2") as server:
        patient = openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=50)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda i: chat(patient, model, QUESTIONS[i % 6], max_tokens=8), range(32)))
        hasty = openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            hurried = [pool.submit(chat, hasty, model, QUESTIONS[0], n=16, temperature=1) for _ in range(16)]
        failed = [done.exception() for done in hurried if done.exception()]
        check(f"a crowd of 16: {len(replies)} answers with retries; without them {len(failed)} are refused with 429, and no other way",
              failed and all(isinstance(error, openai.RateLimitError) for error in failed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uqac", default="target/release/uqac")
    parser.add_argument("--model", default="abacus")
    arguments = parser.parse_args()
    print(f"openai {openai.__version__}, {arguments.model}")
    with Server(arguments.uqac, arguments.model, "--api-key", KEY) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY)
        answers(client, arguments.model, arguments.uqac)
        streaming(client, arguments.model)
        samples(client, arguments.model)
        completions(client, arguments.model)
        errors(client, server, arguments.model)
    crowd(arguments.uqac, arguments.model)


if __name__ == "__main__":
    main()
