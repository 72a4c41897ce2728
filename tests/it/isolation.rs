//! One bad request harms nobody: a server among whose requests are poisonous ones answers the good ones as if they were alone.

use super::serve::{Answer, Server};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use test_support::{cuda_host, tiny};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The token that has a text, but no embedding.
const UNREADABLE: u32 = 257;

/// The byte whose embedding is NaN.
const BAD_BYTE: u8 = 1;

/// A model with a byte that poisons its sequence and a token that it cannot read, and whose template refuses a role and reads the
/// thoughts of a message.
fn model(settings: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let mut config = tiny::config();
    for (name, value) in settings.iter().chain(&[("tie_word_embeddings", json!(false))]) {
        config[*name] = value.clone();
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let width = config["hidden_size"].as_u64().unwrap() as usize;
    tiny::write_weights(folder.path(), &config, |name, values| {
        if name == "embed_tokens" {
            values[usize::from(BAD_BYTE) * width..][..width].fill(f32::NAN);
        }
    });
    edit(&folder.path().join("tokenizer.json"), |tokenizer| {
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["id"], token["content"]) = (json!(UNREADABLE), json!("<image>"));
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    });
    edit(&folder.path().join("tokenizer_config.json"), |config| {
        config["chat_template"] = json!(
            "{% for m in messages %}{% if m.role == 'alien' %}{{ raise_exception('no aliens') }}{% endif %}\
             {{ m.role }}: {{ m.reasoning_content }}{{ m.content }}\n{% endfor %}\
             {% if add_generation_prompt %}assistant: {% if enable_thinking is false %}No. {% endif %}{% endif %}"
        );
    });
    folder
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

fn user(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

/// Good requests of every kind.
fn good() -> Vec<(&'static str, Value)> {
    let mut requests = Vec::new();
    for (i, text) in ["Tom has 3 boxes.", "17 + 25 =", "a", "How many are left, and why?"].into_iter().enumerate() {
        let stream = i % 2 == 1;
        requests.extend([
            (CHAT, json!({"messages": user(text), "temperature": 0, "max_tokens": 12, "stream": stream})),
            (
                CHAT,
                json!({"messages": user(text), "seed": i, "n": 2, "max_tokens": 8, "logprobs": true, "stream": stream}),
            ),
            (COMPLETIONS, json!({"prompt": text, "temperature": 0, "max_tokens": 10, "logprobs": 2, "echo": !stream})),
            (
                COMPLETIONS,
                json!({"prompt": [[5, 6, 7 + i], [9]], "seed": 3, "max_tokens": 6, "stream": stream, "uqac": false}),
            ),
            (CHAT, json!({"messages": user(text), "seed": 9, "max_tokens": 9, "enable_thinking": false})),
            (
                CHAT,
                json!({"messages": user(text), "seed": i, "max_tokens": 9, "stream": stream, "uqac": {"samples": 2}}),
            ),
        ]);
    }
    requests
}

/// A poisonous request of each kind, and the status of its answer; `None`: its client goes away.
fn poisonous() -> Vec<(&'static str, Value, Option<u16>)> {
    let bad = format!("x{}y", char::from(BAD_BYTE));
    let chat = |messages: Value| json!({"messages": messages, "max_tokens": 4});
    vec![
        (COMPLETIONS, json!({"prompt": "describe <image>", "max_tokens": 4}), Some(400)),
        (COMPLETIONS, json!({"prompt": [1, UNREADABLE, 5], "max_tokens": 4}), Some(400)),
        (COMPLETIONS, json!({"prompt": "<image>", "max_tokens": 0, "echo": true, "logprobs": 1}), Some(400)),
        (CHAT, chat(user("describe <image>")), Some(400)),
        (CHAT, chat(json!([{"role": "alien", "content": "x"}])), Some(400)),
        (CHAT, chat(json!([{"role": "", "content": "x"}])), Some(400)),
        (CHAT, chat(json!([{"role": "user", "content": "x", "name": "Al"}])), Some(400)),
        (COMPLETIONS, json!({"prompt": "long ".repeat(1000), "max_tokens": 4}), Some(400)),
        (COMPLETIONS, json!({"prompt": bad, "max_tokens": 4}), Some(500)),
        (CHAT, chat(user(&bad)), Some(500)),
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": 4, "ignore_eos": true}), Some(400)),
        (CHAT, json!({"messages": user(&bad), "max_tokens": 4, "uqac": {"samples": 3}}), Some(500)),
        (CHAT, json!({"messages": user("go"), "n": 8, "max_tokens": 400, "stream": true}), None),
        (CHAT, json!({"messages": user("go"), "max_tokens": 400, "stream": true, "uqac": {"samples": 7}}), None),
    ]
}

/// What an answer says, without its id and its time.
fn content(answer: &Answer, stream: bool) -> Vec<Value> {
    let events = if stream { answer.events() } else { vec![answer.json()] };
    let same = |mut event: Value| {
        ["id", "created"].iter().for_each(|name| event[*name] = Value::Null);
        event
    };
    // choices of a stream come in any order
    let mut events: Vec<Value> = events.into_iter().map(same).collect();
    events.sort_by_key(|event| event["choices"][0]["index"].as_u64());
    events
}

fn is_stream(body: &Value) -> bool {
    body["stream"] == json!(true)
}

/// 5 % of the requests are poisonous, of each kind; every good one must be answered as it is alone. `UQAC_SOAK_SECONDS` makes it
/// longer.
#[test]
fn a_poisonous_request_harms_no_other() {
    let folder = model(&[]);
    let server = Server::of(folder.path().to_str().unwrap(), &["--max-batch", "6"], &[]);
    // a sample may contain the bad byte itself
    let is_good = |(path, body): &(&str, Value)| {
        let answer = server.post(path, body);
        answer.status == 200 && !answer.body.contains("server_error")
    };
    let good: Vec<_> = good().into_iter().filter(is_good).collect();
    assert!(good.len() > 12, "{}", good.len());
    let poisonous = poisonous();
    let expected: Vec<Vec<Value>> =
        good.iter().map(|(path, body)| content(&server.post(path, body), is_stream(body))).collect();
    let seconds = std::env::var("UQAC_SOAK_SECONDS").ok().map(|text| text.parse::<u64>().expect("a number of seconds"));
    let begun = Instant::now();
    let goes_on = |sent: usize| match seconds {
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        None => sent < 220,
    };
    let (sent, counts) = (AtomicUsize::new(0), Mutex::new(vec![0_usize; poisonous.len() + 1]));
    let client = || {
        loop {
            let number = sent.fetch_add(1, Relaxed);
            if !goes_on(number) {
                break;
            }
            // 5 % of each kind, at places that differ from one round to the next
            let place = (number * 7 + number / 20) % 20;
            let (kind, at) = (place, number % good.len());
            match poisonous.get(kind) {
                Some((path, body, Some(status))) => {
                    let answer = server.post(path, body);
                    assert_eq!(answer.status, *status, "{body}: {}", answer.body);
                    answer.error();
                }
                Some((path, body, None)) => {
                    let mut stream = server.send("POST", path, "", body.to_string().as_bytes());
                    stream.read_exact(&mut [0; 64]).unwrap();
                }
                None => {
                    let (path, body) = &good[at];
                    let found = content(&server.post(path, body), is_stream(body));
                    assert_eq!(found, expected[at], "{body}");
                }
            }
            counts.lock().unwrap()[kind.min(poisonous.len())] += 1;
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    let counts = counts.into_inner().unwrap();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    server.wait_for("nothing is left", |server| server.metric("uqac_running") == 0.0);
    assert_eq!(server.get("/health").status, 200);
    println!(
        "{} good requests, each as alone; of each poisonous kind {:?}",
        counts[poisonous.len()],
        &counts[..poisonous.len()]
    );
}

#[test]
fn what_the_model_cannot_read_is_named() {
    let folder = model(&[]);
    let server = Server::of(folder.path().to_str().unwrap(), &[], &[]);
    for (path, body, param) in [
        (COMPLETIONS, json!({"prompt": "describe <image>"}), "prompt"),
        (COMPLETIONS, json!({"prompt": [[5], [1, UNREADABLE]]}), "prompt"),
        (COMPLETIONS, json!({"prompt": "<image>", "echo": true, "max_tokens": 0, "logprobs": 0}), "prompt"),
        (CHAT, json!({"messages": user("<image>")}), "messages"),
    ] {
        let error = server.post(path, &body).error();
        let message = error["message"].as_str().unwrap();
        assert!(["257", "<image>", "below 257"].iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(error["param"], param, "{message}");
    }
    let scored = server.post("/v1/score", &json!({"input_ids": [5, UNREADABLE, 6], "n_instr": 1}));
    assert_eq!(scored.status, 400, "{}", scored.body);
}

/// The server's own prompt tokens tell what reached the template.
#[test]
fn message_fields_and_switches_reach_the_template_or_are_refused() {
    let folder = model(&[]);
    let server = Server::of(folder.path().to_str().unwrap(), &[], &[]);
    let post = |message: Value, more: Value| {
        let mut body = json!({"messages": [message], "temperature": 0, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(CHAT, &body)
    };
    let tokens = |answer: Answer| answer.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let turn = |more: Value| {
        let mut message = json!({"role": "assistant", "content": "x"});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    };
    let plain = tokens(post(turn(json!({})), json!({})));
    for thoughts in ["reasoning_content", "reasoning"] {
        assert_eq!(tokens(post(turn(json!({thoughts: "four"})), json!({}))), plain + 4, "{thoughts}");
    }
    let nothing = json!({"tool_calls": [], "function_call": null, "name": "", "prefix": false, "refusal": null});
    assert_eq!(tokens(post(turn(nothing), json!({}))), plain);
    for (field, value) in [
        ("name", json!("Alice")),
        ("prefix", json!(true)),
        ("partial", json!(true)),
        ("tool_call_id", json!("1")),
        ("tool_calls", json!([{"type": "function"}])),
        ("function_call", json!({"name": "f"})),
    ] {
        let answer = post(turn(json!({field: value})), json!({}));
        assert_eq!((answer.status, answer.error()["param"].as_str().unwrap()), (400, &*format!("messages[0].{field}")));
    }
    let switch = |more: Value| post(turn(json!({})), more);
    for on in ["enable_thinking", "think", "add_special_tokens", "do_sample", "include_reasoning"] {
        assert_eq!(tokens(switch(json!({on: true}))), plain, "{on}");
    }
    for off in [
        json!({"enable_thinking": false}),
        json!({"think": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        assert_eq!(tokens(switch(off.clone())), plain + 4, "{off}");
    }
    for (refused, value) in
        [("reasoning_effort", json!("low")), ("think", json!("high")), ("include_reasoning", json!(false))]
    {
        assert_eq!(switch(json!({refused: value})).error()["param"], refused);
    }
    let greedy = |more: Value| {
        let mut body = json!({"prompt": "Tom has", "max_tokens": 12});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(COMPLETIONS, &body).json()["choices"][0]["text"].clone()
    };
    assert_eq!(greedy(json!({"do_sample": false})), greedy(json!({"temperature": 0})));
}

/// Offsets of a stream, and the log-probabilities of named tokens, are those of the whole answer.
#[test]
fn streamed_log_probabilities_are_those_of_the_whole_answer() {
    let folder = model(&[]);
    let server = Server::of(folder.path().to_str().unwrap(), &[], &[]);
    // bytes beyond ASCII: characters of several tokens, and invalid ones
    let base = json!({"prompt": [200, 201, 202], "max_tokens": 24, "temperature": 1.5, "seed": 4, "logprobs": 3});
    let named = json!({"logprob_token_ids": [7, 200], "logprobs": 0});
    for more in [json!({}), named.clone()] {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = server.post(COMPLETIONS, &body).json()["choices"][0].clone();
        body["stream"] = json!(true);
        let events = server.post(COMPLETIONS, &body).events();
        for list in ["text_offset", "tokens", "token_logprobs", "top_logprobs"] {
            let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"][list].as_array());
            assert_eq!(json!(parts.flatten().collect::<Vec<_>>()), whole["logprobs"][list], "{list} {more}");
        }
        let characters = whole["text"].as_str().unwrap().chars().count() as u64;
        let offsets = whole["logprobs"]["text_offset"].as_array().unwrap();
        assert!(offsets.iter().all(|offset| offset.as_u64().unwrap() <= characters) && offsets.len() == 24);
    }
    // those of a token that is among the most probable are the same either way
    let chat = |more: Value| {
        let mut body = json!({"messages": user("x"), "max_tokens": 5, "temperature": 0, "logprobs": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(CHAT, &body).json()["choices"][0]["logprobs"]["content"].as_array().unwrap().clone()
    };
    let top = chat(json!({"top_logprobs": 3}));
    assert!(top.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 3));
    let sampled = chat(json!({"top_logprobs": 1, "temperature": 2, "seed": 1}));
    assert!(sampled.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 1));
    let ids: Vec<u64> = top.iter().map(|token| token["top_logprobs"][1]["bytes"][0].as_u64().unwrap()).collect();
    for (i, token) in chat(json!({"logprob_token_ids": ids})).iter().enumerate() {
        let named = token["top_logprobs"].as_array().unwrap();
        let second = named.iter().find(|other| other["bytes"][0] == ids[i]).unwrap();
        assert_eq!(second["logprob"], top[i]["top_logprobs"][1]["logprob"], "{i}");
    }
    let refused =
        [(json!({"logprob_token_ids": [257]}), 400), (json!({"logprob_token_ids": [5], "max_tokens": 0}), 400)];
    for (more, status) in refused {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post(COMPLETIONS, &body);
        assert_eq!((answer.status, answer.error()["param"].clone()), (status, json!("logprob_token_ids")));
    }
}

/// A response's text is without special tokens, as transformers and vLLM show it, unless they are asked for; stop strings see them.
#[test]
fn special_tokens_are_shown_only_on_request() {
    const SPECIAL: &str = "#%&*+@~QXZJKV0123678";
    let folder = model(&[]);
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    tiny::write_weights(folder.path(), &serde_json::from_str(&config).unwrap(), |_, _| ());
    edit(&folder.path().join("tokenizer.json"), |tokenizer| {
        let tokens = SPECIAL.chars().map(|c| {
            json!({"id": c as u32, "content": c, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
        });
        tokenizer["added_tokens"].as_array_mut().unwrap().extend(tokens);
    });
    let server = Server::of(folder.path().to_str().unwrap(), &[], &[]);
    let hidden = |text: &str| text.replace(|c| SPECIAL.contains(c), "");
    let post = |path: &str, more: &[(&str, Value)]| {
        let mut body = json!({"temperature": 1.5, "seed": 5, "max_tokens": 300, "logprobs": if path == CHAT { json!(true) } else { json!(0) }});
        body[if path == CHAT { "messages" } else { "prompt" }] =
            if path == CHAT { user("go on") } else { json!("go on") };
        more.iter().for_each(|(name, value)| body[*name] = value.clone());
        let whole = server.post(path, &body).json()["choices"][0].clone();
        if !body["echo"].is_null() {
            return whole;
        }
        body["stream"] = json!(true);
        let events = server.post(path, &body).events();
        let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
        let text = |choice: &Value| {
            choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default().to_owned()
        };
        let told = whole["text"].as_str().or(whole["message"]["content"].as_str()).unwrap();
        assert_eq!(choices.iter().map(|choice| text(choice)).collect::<String>(), told);
        for list in ["content", "tokens", "text_offset"] {
            let parts = choices.iter().filter_map(|choice| choice["logprobs"][list].as_array()).flatten();
            let of_whole = whole["logprobs"][list].as_array().into_iter().flatten();
            assert!(parts.eq(of_whole), "{list} {more:?}");
        }
        whole
    };
    let all = [("skip_special_tokens", json!(false))];
    for path in [CHAT, COMPLETIONS] {
        let text =
            |choice: &Value| choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap().to_owned();
        let (shown, whole) = (post(path, &[]), post(path, &all));
        assert_eq!(text(&shown), hidden(&text(&whole)));
        assert!(text(&whole).len() > text(&shown).len() + 3, "{whole}");
        let tokens = |choice: &Value| {
            choice["logprobs"]["tokens"].as_array().or(choice["logprobs"]["content"].as_array()).unwrap().len()
        };
        assert_eq!(tokens(&shown), tokens(&whole));
        assert_eq!(shown["uqac"]["answer"], whole["uqac"]["answer"]);
        // what a stop string of both kinds of tokens leaves
        let text = text(&whole);
        let at = text.char_indices().skip(40).find(|(_, c)| SPECIAL.contains(*c)).unwrap().0;
        let stop = text[at..].chars().take(3).collect::<String>();
        let before = &text[..text.find(&stop).unwrap()];
        for (more, expected) in [(&[][..], hidden(before)), (&all[..], before.to_owned())] {
            let stopped = post(path, &[&[("stop", json!([stop]))], more].concat());
            let found = stopped["text"].as_str().or(stopped["message"]["content"].as_str()).unwrap();
            assert_eq!((found, &stopped["finish_reason"]), (&*expected, &json!("stop")));
        }
    }
    // the prompt is the client's own text
    let echoed = post(COMPLETIONS, &[("echo", json!(true))]);
    assert!(echoed["text"].as_str().unwrap().starts_with("go on"));
    let offsets: Vec<u64> =
        echoed["logprobs"]["text_offset"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap()).collect();
    let ends: Vec<u64> =
        offsets[1..].iter().copied().chain([echoed["text"].as_str().unwrap().chars().count() as u64]).collect();
    let tokens = echoed["logprobs"]["tokens"].as_array().unwrap();
    for (i, token) in tokens.iter().enumerate().skip(5).filter(|(_, token)| SPECIAL.contains(token.as_str().unwrap())) {
        assert_eq!(offsets[i], ends[i], "{token}");
    }
}

/// A sequence that fails while others are in flight: these end as they do without it, in a run and in a list of texts.
#[test]
fn an_item_that_the_model_fails_on_stays_alone() {
    let (folder, work) = (model(&[]), tempfile::tempdir().unwrap());
    let run = |command: &str, name: &str, lines: &[Value], more: &[&str]| -> Vec<Value> {
        // samples are drawn by the name of the task
        let (input, output) = (work.path().join(name).join("task.jsonl"), work.path().join(name).join("out"));
        std::fs::create_dir(work.path().join(name)).unwrap();
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&input, text.join("\n")).unwrap();
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_uqac"));
        program.args([command, "--threads", "2", "--device", "cpu", "--model"]).arg(folder.path());
        let ran = program.args(more).arg(&input).arg("--output").arg(&output).output().unwrap();
        let failed = i32::from(lines.iter().any(|line| line.to_string().contains("\\u0001")));
        assert_eq!(ran.status.code(), Some(failed), "{}", String::from_utf8_lossy(&ran.stderr));
        let file = if command == "eval" { output.join("samples_task.jsonl") } else { output };
        let text = std::fs::read_to_string(file).unwrap();
        let mut records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        records.sort_by_key(|record| record["doc_id"].as_u64());
        for record in &mut records {
            record["uq"]["seconds"] = Value::Null;
        }
        records
    };
    let bad = format!("x{}y", char::from(BAD_BYTE));
    let question = |text: &str| json!({"question": text, "answer": 1, "grader": "number"});
    let scored = |text: &str| json!({"prompt": text, "response": "It is 4"});
    for (command, line, more) in [
        (
            "eval",
            &question as &dyn Fn(&str) -> Value,
            &["--max-tokens", "20", "--methods", "self-consistency", "--tasks"][..],
        ),
        ("score", &scored, &["--input"]),
    ] {
        let good: Vec<Value> = ["Tom has 3 boxes.", "17 + 25 =", "a"].map(line).into();
        let expected = run(command, &format!("{command}_good"), &good, more);
        let found = run(command, &format!("{command}_all"), &[&good[..], &[line(&bad)]].concat(), more);
        assert_eq!(found[..3], expected);
        let of = if command == "eval" { &found[3]["uq"] } else { &found[3] };
        assert_eq!(of["status"], "error", "{of}");
        assert!(of["error"].as_str().unwrap().contains("not finite"), "{of}");
    }
}

/// A prompt that the device has no memory for is an error of its own. A kernel that faults takes the device with it: all clients get
/// an error, and it shows in `/health` and by the exit code.
#[test]
#[cfg(unix)]
fn what_a_device_lacks_fails_alone_and_a_lost_device_is_told_to_all() {
    let Some(libraries) = cuda_host::library_folder() else { return };
    // a position takes 147 KB
    let sizes =
        [("num_hidden_layers", 12), ("num_attention_heads", 128), ("num_key_value_heads", 128), ("head_dim", 16)];
    let (folder, cache) = (model(&sizes.map(|(name, size)| (name, json!(size)))), tempfile::tempdir().unwrap());
    let (path, cache) = (folder.path().to_str().unwrap(), cache.path().to_str().unwrap());
    let libraries = libraries.to_str().unwrap();
    let good = [("LD_LIBRARY_PATH", libraries), ("UQAC_CACHE", cache)];
    // the kernels pass their self-test, whose verdict is kept
    drop(Server::of(path, &["--device", "cuda"], &good));
    let server = Server::of(path, &["--device", "cuda"], &[good[0], good[1], ("UQAC_HOST_CUDA_MEMORY", "96M")]);
    let small = json!({"prompt": "Tom has", "max_tokens": 8, "temperature": 0, "logprobs": 1, "uqac": false});
    let expected = content(&server.post(COMPLETIONS, &small), false);
    std::thread::scope(|scope| {
        let others: Vec<_> =
            (0..2).map(|_| scope.spawn(|| content(&server.post(COMPLETIONS, &small), false))).collect();
        let large = server.post(COMPLETIONS, &json!({"prompt": "long ".repeat(180), "max_tokens": 4}));
        assert!(large.status >= 500, "{}", large.body);
        assert!(large.error()["message"].as_str().unwrap().contains("memory"), "{}", large.body);
        others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), expected));
    });
    assert_eq!(content(&server.post(COMPLETIONS, &small), false), expected);
    assert_eq!(server.get("/health").status, 200);
    drop(server);
    let faulty = [good[0], good[1], ("UQAC_HOST_CUDA_FAULT", "head_finish")];
    let mut server = Server::of(path, &["--device", "cuda"], &faulty);
    assert_eq!(server.get("/health").status, 200);
    for _ in 0..2 {
        let answer = server.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 4}));
        assert_eq!((answer.status, answer.error()["code"].clone()), (503, json!("engine_lost")));
    }
    let health = server.get("/health");
    assert_eq!(health.status, 503);
    assert!(health.error()["message"].as_str().unwrap().contains("device is lost"), "{}", health.body);
    let kill = std::process::Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(server.child.wait().unwrap().code(), Some(2));
}
