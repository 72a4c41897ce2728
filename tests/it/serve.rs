//! `uqac serve` with the built-in model: its answers compared with those of `ask` and `score`, and its handling of
//! clients that disconnect, arrive in crowds, or send invalid requests.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server on its own port; dropping it stops it.
pub(super) struct Server {
    pub child: Child,
    pub address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        Server::of("abacus", arguments, &[])
    }

    /// A server of a model, with more environment variables.
    pub fn of(model: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        command.args(["serve", "-m", model, "--port", "0", "--threads", "2"]).args(arguments);
        command.envs(environment.iter().copied());
        command.env_remove("UQAC_API_KEY").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.by_ref().find(|line| line.contains(": http://")).expect("the server says where it is");
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address: line.rsplit_once("http://").unwrap().1.to_owned() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        stream
    }

    /// Sends a request without waiting for the answer.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let (host, length) = (&self.address, body.len());
        let kind =
            if headers.to_lowercase().contains("content-type") { "" } else { "Content-Type: application/json\r\n" };
        let host = if headers.contains("Host:") { String::new() } else { format!("Host: {host}\r\n") };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{kind}{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        // it may have answered and closed before everything was sent
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        stream
    }

    fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        Answer::read(self.send(method, path, headers, body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, "", body.to_string().as_bytes())
    }

    fn chat(&self, question: &str, more: Value) -> Answer {
        self.post("/v1/chat/completions", &question_of(question, more))
    }

    /// A value from `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Server) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn question_of(question: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": question}], "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(super) struct Answer {
    pub status: u16,
    headers: HashMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn read(mut stream: TcpStream) -> Answer {
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        assert!(!bytes.is_empty(), "no answer: {read:?}");
        let split = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HashMap<String, String> =
            lines.map(|line| line.split_once(": ").unwrap()).map(|(k, v)| (k.to_lowercase(), v.to_owned())).collect();
        let mut body = bytes[split + 4..].to_vec();
        if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            body = unchunked(&body);
        }
        Answer { status, headers, body: String::from_utf8(body).unwrap() }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// The message of an error.
    #[track_caller]
    pub fn error(&self) -> Value {
        let value: Value =
            serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}: {}", self.status, self.body));
        let error = &value["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{value}");
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{value}");
        error.clone()
    }

    /// The objects of a stream; `[DONE]` must come last.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream; charset=utf-8", "{}", self.body);
        let mut lines: Vec<&str> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{}", self.body);
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        whole.extend(&body[line + 2..line + 2 + size]);
        body = &body[(line + 4 + size).min(body.len())..];
    }
    whole
}

/// The program's standard output, as JSON.
fn uqac(arguments: &[&str], input: &str) -> Value {
    let mut child = Command::new(env!("CARGO_BIN_EXE_uqac"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

const QUESTIONS: [&str; 4] = [
    "What is 17 + 25?",
    "Tom has 3 boxes with 12 pencils each. How many pencils are there?",
    "Ann has 41 apples and gives 13 away. How many are left?",
    "What is 125 - 87 + 4?",
];

#[test]
fn answers_have_the_bits_of_ask_under_load() {
    let server = Server::start(&["--max-batch", "5"]);
    let hot = ["--temperature", "0.8", "--top-p", "0.9", "--seed", "7"];
    let settings: [(&[&str], Value); 3] = [
        (&[], json!({})),
        (&hot, json!({"temperature": 0.8, "top_p": 0.9, "seed": 7})),
        (&["--samples", "3"], json!({"seed": 0})),
    ];
    let mut expected = Vec::new();
    for question in QUESTIONS {
        for (i, (arguments, more)) in settings.iter().enumerate() {
            let ask = [&["ask", "-m", "abacus", "--json", "--threads", "1", question], *arguments].concat();
            let (samples, mut more) = (if i == 2 { 3 } else { 0 }, more.clone());
            more["uqac"] = json!({"scores": "all", "explain": true, "samples": samples});
            expected.push((question, more, uqac(&ask, "")));
        }
    }
    // samples change nothing but what is theirs
    for three in expected.chunks(3) {
        let (plain, mut beside) = (&three[0].2, three[2].2.clone());
        let samples = beside.as_object_mut().unwrap().remove("samples").unwrap();
        assert_eq!(samples["answers"].as_array().unwrap().len(), 3, "{samples}");
        let scores = beside["scores"].as_object_mut().unwrap();
        let [share, with_g4] = ["agreement", "g4_agreement"].map(|key| scores.remove(key).unwrap().as_f64().unwrap());
        assert!((with_g4 - share - sigmoid(scores["g4"].as_f64().unwrap())).abs() < 1e-12, "{share} {with_g4}");
        let agreeing = samples["agrees"].as_array().unwrap().iter().filter(|agrees| **agrees == json!(true)).count();
        assert!((3.0 * share - agreeing as f64).abs() < 1e-9, "{share} {samples}");
        let weight = scores.remove("self_consistency").unwrap().as_f64().unwrap();
        assert!(weight <= share && scores.remove("self_consistency_majority").is_some(), "{weight}");
        beside["tokens_per_second"] = plain["tokens_per_second"].clone();
        assert_eq!(beside, *plain);
    }
    // every question three times concurrently, alongside others that come and go
    std::thread::scope(|scope| {
        for round in 0..3 {
            for (i, (question, more, ask)) in expected.iter().enumerate() {
                let server = &server;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(17 * (i as u64 + 3 * round)));
                    let answer = server.chat(question, more.clone()).json();
                    let choice = &answer["choices"][0];
                    assert_eq!(choice["message"]["content"], ask["response"]);
                    assert_eq!(choice["finish_reason"], ask["finish_reason"]);
                    let uqac = &choice["uqac"];
                    let of_samples = ask["samples"]["response_tokens"].as_array().into_iter().flatten();
                    let tokens = of_samples.chain([&ask["response_tokens"]]).map(|tokens| tokens.as_u64().unwrap());
                    assert_eq!(answer["usage"]["completion_tokens"], tokens.sum::<u64>());
                    assert_eq!(uqac["samples"], ask["samples"]);
                    assert_eq!(uqac["p"], ask["scores"]["p"]);
                    // with the calibration shipped with the model
                    assert!(ask["answer"].is_null() || (ask["from"].is_string() && uqac["confidence"].is_f64()));
                    let shared = ["profile", "status", "n_instr", "answer", "chain", "kept", "confidence", "from"];
                    for key in shared.into_iter().chain(["calibration", "out_of_range"]) {
                        assert_eq!(uqac[key], ask[key], "{key}");
                    }
                    // scores that were not recorded are null here, and absent there
                    for (key, score) in uqac["scores"].as_object().unwrap() {
                        assert_eq!(*score, ask["scores"][key], "{key}");
                    }
                    let members = |value: &Value| -> Vec<Value> {
                        let members = value["ensemble"].as_array().unwrap().iter();
                        members.map(|m| json!([m["position"], m["token"], m["log_answer"], m["log_chain"]])).collect()
                    };
                    assert_eq!(members(uqac), members(ask));
                });
                scope.spawn(move || {
                    let more = json!({"temperature": 1.5, "n": 2, "max_tokens": 5 + 9 * i, "logprobs": true});
                    assert_eq!(server.chat(question, more).json()["choices"].as_array().unwrap().len(), 2);
                });
            }
        }
    });
    assert_eq!(server.metric("uqac_running"), 0.0);
}

/// Responses that end because of low confidence match those of `ask`, alongside others that continue.
#[test]
fn stop_below_ends_a_response_where_it_does_in_ask() {
    let server = Server::start(&["--max-batch", "4"]);
    let mut stopped = 0;
    std::thread::scope(|scope| {
        for question in QUESTIONS {
            let server = &server;
            scope.spawn(move || server.chat(question, json!({"n": 2, "temperature": 1.5, "max_tokens": 40})).json());
        }
        for (measure, window, threshold) in
            [("group", "4", "14"), ("group", "64", "1000"), ("entropy", "3", "-0.2"), ("entropy", "1", "-0.001")]
        {
            for question in QUESTIONS {
                let early = ["--stop-below", threshold, "--running", measure, "--window", window];
                let ask =
                    uqac(&[&["ask", "-m", "abacus", "--json", "--threads", "1", question], &early[..]].concat(), "");
                let [threshold, window]: [Value; 2] =
                    [threshold, window].map(|text| serde_json::from_str(text).unwrap());
                let wish = json!({"stop_below": threshold, "running": measure, "window": window});
                let answer = server.chat(question, json!({"uqac": wish})).json();
                let choice = &answer["choices"][0];
                assert_eq!(choice["message"]["content"], ask["response"], "{wish} {question}");
                assert_eq!(choice["finish_reason"], ask["finish_reason"], "{wish} {question}");
                assert_eq!(answer["usage"]["completion_tokens"], ask["response_tokens"]);
                let (scores, chain) = (&choice["uqac"]["scores"], &choice["uqac"]["chain"]);
                assert_eq!((&scores["g4"], chain), (&ask["scores"]["g4"], &ask["chain"]));
                assert!(choice["uqac"]["p"].is_null(), "it costs passes, and nobody asked");
                let running = &choice["uqac"]["running"];
                assert_eq!((&running["measure"], &running["window"]), (&json!(measure), &window));
                let is_below = running["value"].as_f64().map(|c| c < running["stop_below"].as_f64().unwrap());
                let is_unsure = choice["finish_reason"] == "unsure";
                // a window that no response fills yields no value
                assert_eq!(is_below, if window == 64 { None } else { Some(is_unsure) }, "{running}");
                stopped += usize::from(is_unsure);
                let more = json!({"uqac": wish, "stream": true});
                let events = server.chat(question, more).events();
                let last = &events.last().unwrap()["choices"][0];
                assert_eq!((&last["finish_reason"], &last["uqac"]), (&choice["finish_reason"], &choice["uqac"]));
            }
        }
    });
    assert!((1..4 * QUESTIONS.len()).contains(&stopped), "{stopped} of {}: the test needs both", 4 * QUESTIONS.len());
    let reported = server.chat(QUESTIONS[0], json!({"uqac": {"running": "entropy", "window": 2}})).json();
    let running = &reported["choices"][0]["uqac"]["running"];
    assert!(running["value"].is_f64() && running["stop_below"].is_null(), "{running}");
    let score = json!({"prompt": "x", "response": "y", "uqac": {"stop_below": 1}});
    assert_eq!(server.post("/v1/score", &score).error()["param"], "uqac.running");
}

#[test]
fn a_stream_adds_up_to_the_whole_answer() {
    let server = Server::start(&[]);
    for more in [
        json!({"logprobs": true, "top_logprobs": 3}),
        json!({"stop": [" ="], "logprobs": true, "n": 2, "temperature": 1, "seed": 3}),
        json!({"max_tokens": 3, "uqac": false}),
        json!({"uqac": {"samples": 3}, "n": 2, "seed": 5, "temperature": 1}),
    ] {
        let whole = server.chat(QUESTIONS[1], more.clone()).json();
        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let mut events = server.chat(QUESTIONS[1], streamed).events();
        assert_eq!(events.pop().unwrap()["usage"], whole["usage"]);
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let own: Vec<&Value> =
                events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index).collect();
            assert_eq!(own[0]["delta"]["role"], "assistant");
            let text: String = own.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
            assert_eq!(text, choice["message"]["content"], "{more}");
            assert!(!text.contains(more["stop"][0].as_str().unwrap_or("\0")));
            let tokens: Vec<&Value> =
                own.iter().filter_map(|choice| choice["logprobs"]["content"].as_array()).flatten().collect();
            let expected: Vec<&Value> = choice["logprobs"]["content"].as_array().into_iter().flatten().collect();
            assert_eq!(tokens, expected, "{more}");
            assert_eq!(expected.is_empty(), more.get("logprobs").is_none());
            let last = own.last().unwrap();
            assert_eq!((&last["finish_reason"], last.get("uqac")), (&choice["finish_reason"], choice.get("uqac")));
        }
    }
}

#[test]
fn samples_differ_and_a_seed_repeats_them() {
    let server = Server::start(&[]);
    let ask = |seed: Value| {
        let answer = server.chat(QUESTIONS[1], json!({"temperature": 2, "n": 4, "seed": seed})).json();
        let choices = answer["choices"].as_array().unwrap().clone();
        let texts: Vec<String> = choices.iter().map(|c| c["message"]["content"].to_string()).collect();
        (texts, choices[0]["uqac"]["seed"].clone())
    };
    let (first, seed) = ask(Value::Null);
    assert!(first.iter().any(|text| *text != first[0]), "{first:?}");
    let (second, other) = ask(Value::Null);
    assert!(first != second && seed != other);
    assert_eq!(ask(seed.clone()), (first, seed));
}

#[test]
fn a_text_scored_with_echo_has_the_bits_of_its_generation() {
    let server = Server::start(&[]);
    let prompt = "What is 17 + 25?\n";
    let body = |prompt: Value, more: Value| {
        let mut body = json!({"prompt": prompt, "temperature": 0, "logprobs": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let written = server.post("/v1/completions", &body(json!(prompt), json!({"max_tokens": 12}))).json();
    let written = &written["choices"][0];
    let numbers = |choice: &Value| test_support::numbers(&choice["logprobs"]["token_logprobs"]);
    let text = format!("{prompt}{}", written["text"].as_str().unwrap());
    let echo = json!({"max_tokens": 0, "echo": true});
    let echoed = server.post("/v1/completions", &body(json!([text, prompt]), echo)).json();
    let scored = &echoed["choices"][0];
    assert_eq!((&scored["text"], &echoed["choices"][1]["text"]), (&json!(text), &json!(prompt)));
    let logprobs = &scored["logprobs"];
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    let all: Vec<f64> =
        logprobs["token_logprobs"].as_array().unwrap()[1..].iter().map(|p| p.as_f64().unwrap()).collect();
    let expected = numbers(written);
    // the last token may be an end token, which has no text to be scored by
    let count =
        written["logprobs"]["tokens"].as_array().unwrap().len() - usize::from(written["finish_reason"] == "stop");
    assert!(count > 3 && all.ends_with(&expected[..count]), "{expected:?} {all:?}");
    // a greedy token is the most probable one, with exactly the same value, as lm-evaluation-harness compares them
    for (top, own) in written["logprobs"]["top_logprobs"].as_array().unwrap().iter().zip(&expected) {
        let best = top.as_object().unwrap().values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(best, *own);
    }
    let offsets = logprobs["text_offset"].as_array().unwrap();
    // the first token begins the sequence, and is not in the text
    for (token, offset) in logprobs["tokens"].as_array().unwrap().iter().zip(offsets).skip(1) {
        let from = offset.as_u64().unwrap() as usize;
        assert!(text[from..].starts_with(token.as_str().unwrap()), "{token} at {from} of {text}");
    }
    // with one more token, as harnesses request it; the prompt as ids
    let more = server.post("/v1/completions", &body(json!(text), json!({"max_tokens": 1, "echo": true}))).json();
    let more = &more["choices"][0]["logprobs"];
    assert_eq!(more["token_logprobs"].as_array().unwrap().len(), all.len() + 2);
    assert_eq!(
        more["token_logprobs"].as_array().unwrap()[..=all.len()],
        logprobs["token_logprobs"].as_array().unwrap()[..]
    );
}

#[test]
fn a_response_that_exists_is_scored_as_by_score() {
    let server = Server::start(&[]);
    for item in [
        json!({"id": "a", "prompt": QUESTIONS[0], "response": "17 + 25 = 42. The answer is 42.", "uqac": {"explain": true}}),
        json!({"id": 5, "prompt": QUESTIONS[0], "response": "No idea.", "uqac": {"explain": true}}),
    ] {
        let line = uqac(&["score", "-m", "abacus", "-i", "-", "-o", "-", "--explain"], &format!("{item}\n"));
        assert_eq!(server.post("/v1/score", &item).json(), line);
    }
    let error = server.post("/v1/score", &json!({"prompt": "x"})).error();
    assert_eq!(error["message"], "missing field response");
}

/// Values of every type; each field is given the ones it does not accept.
fn wrong_values() -> Vec<Value> {
    vec![
        json!(true),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!("x"),
        json!(""),
        json!([]),
        json!([1]),
        json!(["x", 1]),
        json!([null]),
        json!({}),
        json!({"x": 1}),
        json!([[]]),
        json!(99_999),
    ]
}

/// A path, and a JSON body that is not a valid request.
type Body = (&'static str, Value);

/// Adds bodies with each wrong value of a field.
fn add(bodies: &mut Vec<Body>, (path, base): (&'static str, &Value), field: &str, takes: &dyn Fn(&Value) -> bool) {
    for value in wrong_values().into_iter().filter(|value| !takes(value)) {
        let mut body = base.clone();
        body[field] = value;
        bodies.push((path, body));
    }
}

fn wrong_bodies() -> Vec<Body> {
    let mut bodies = Vec::new();
    let whole = |min: u64, max: u64| move |value: &Value| value.as_u64().is_some_and(|n| (min..=max).contains(&n));
    let number = |max: f64| move |value: &Value| value.as_f64().is_some_and(|x| (0.0..=max).contains(&x));
    let strings = |v: &Value| v.is_string() || v.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    let nothing = |v: &Value| *v == json!([]) || *v == json!({});
    let message = question_of("x", json!({}));
    let chat = ("/v1/chat/completions", &message);
    let prompt = json!({"prompt": "x", "max_tokens": 1});
    let completion = ("/v1/completions", &prompt);
    for target in [chat, completion] {
        add(&mut bodies, target, "model", &Value::is_string);
        add(&mut bodies, target, "n", &whole(1, 128));
        add(&mut bodies, target, "temperature", &number(2.0));
        add(&mut bodies, target, "top_p", &number(1.0));
        let top_k = |v: &Value| v.as_i64().is_some_and(|n| (-1..=i64::from(u32::MAX)).contains(&n));
        add(&mut bodies, target, "top_k", &top_k);
        for field in ["min_p", "stop_token_ids", "guided_json", "continue_final_message", "no_such_field"] {
            add(&mut bodies, target, field, &|v| [json!(false), json!([]), json!({}), json!("")].contains(v));
        }
        add(&mut bodies, target, "seed", &Value::is_i64);
        add(&mut bodies, target, "stop", &strings);
        add(&mut bodies, target, "stream", &Value::is_boolean);
        add(&mut bodies, target, "stream_options", &|_| false);
        add(&mut bodies, target, "response_format", &|_| false);
        add(&mut bodies, target, "uqac", &|v| v.is_boolean() || v.is_object());
        for field in ["logit_bias", "presence_penalty", "frequency_penalty"] {
            add(&mut bodies, target, field, &nothing);
        }
        for field in ["scores", "explain", "stop_below", "running", "window"] {
            let takes = |value: &Value| match field {
                "scores" => *value == json!([]),
                "explain" => value.is_boolean(),
                "stop_below" => value.is_number(),
                _ => false, // a window not alone
            };
            for value in wrong_values().into_iter().filter(|value| !takes(value)) {
                let mut body = target.1.clone();
                body["uqac"] = json!({field: value});
                bodies.push((target.0, body));
            }
        }
    }
    add(&mut bodies, chat, "messages", &|_| false);
    add(&mut bodies, chat, "max_tokens", &whole(1, u64::MAX));
    add(&mut bodies, chat, "max_completion_tokens", &whole(1, u64::MAX));
    add(&mut bodies, chat, "logprobs", &Value::is_boolean);
    add(&mut bodies, chat, "top_logprobs", &|_| false);
    add(&mut bodies, chat, "tools", &nothing);
    add(&mut bodies, completion, "prompt", &|v| v.is_string() || *v == json!([1]));
    add(&mut bodies, completion, "max_tokens", &whole(0, u64::MAX));
    add(&mut bodies, completion, "logprobs", &whole(0, 5));
    add(&mut bodies, completion, "echo", &Value::is_boolean);
    add(&mut bodies, completion, "suffix", &|v| nothing(v) || *v == json!(""));
    for (field, value) in [("role", json!(1)), ("content", json!(1)), ("content", json!([1])), ("content", Value::Null)]
    {
        let mut body = message.clone();
        body["messages"][0][field] = value;
        bodies.push((chat.0, body));
    }
    let item = json!({"prompt": "x", "response": "y"});
    let score = ("/v1/score", &item);
    for field in ["messages", "input_ids"] {
        add(&mut bodies, score, field, &|_| false);
    }
    for field in ["prompt", "dataset"] {
        add(&mut bodies, score, field, &Value::is_string);
    }
    add(&mut bodies, score, "response", &|v| *v == json!("x"));
    bodies
}

#[test]
fn what_is_no_request_is_told_so() {
    let server = Server::start(&["--max-batch", "2"]);
    let mut sent = 0;
    let mut refused = |path: &str, body: &[u8]| {
        let answer = server.request("POST", path, "", body);
        let text = String::from_utf8_lossy(body);
        assert!((400..500).contains(&answer.status), "{path} {text}: {} {}", answer.status, answer.body);
        answer.error();
        sent += 1;
    };
    for (path, body) in wrong_bodies() {
        refused(path, body.to_string().as_bytes());
    }
    // every prefix of a body, and bodies with a byte that is invalid in JSON
    let body = question_of("x", json!({"stop": ["y"], "seed": 1})).to_string();
    for end in 0..body.len() {
        refused("/v1/chat/completions", &body.as_bytes()[..end]);
    }
    for at in 0..body.len() {
        let mut bytes = body.clone().into_bytes();
        bytes[at] = [0xff, 0x00, 0x01][at % 3];
        refused("/v1/completions", &bytes);
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    refused("/v1/chat/completions", deep.as_bytes());
    let prompt = |ids: Value| json!({"prompt": ids}).to_string();
    refused("/v1/completions", prompt(json!([4_294_967_295_u32])).as_bytes());
    refused("/v1/completions", prompt(json!(vec![5; 70_000])).as_bytes());
    refused("/v1/chat/completions", question_of(&"1 ".repeat(300_000), json!({})).to_string().as_bytes());
    assert!(sent >= 500, "{sent}");
    // not even HTTP
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "POST /v1/score HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "x".repeat(200_000).as_str(),
    ] {
        let mut stream = server.connect();
        let _ = stream.write_all(garbage.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        assert!(bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&bytes));
    }
    assert_eq!(server.chat(QUESTIONS[0], json!({})).json()["choices"][0]["uqac"]["answer"]["text"], "42");
}

#[test]
fn limits_keys_and_paths() {
    let server = Server::start(&["--api-key", "secret"]);
    let key = "Authorization: Bearer secret\r\n";
    let body = question_of(QUESTIONS[0], json!({"max_tokens": 2})).to_string();
    let chat = |headers: &str, body: &[u8]| server.request("POST", "/v1/chat/completions", headers, body);
    for scheme in ["Bearer", "bearer", "BEARER"] {
        assert_eq!(chat(&format!("Authorization: {scheme} secret\r\n"), body.as_bytes()).status, 200);
    }
    for headers in
        ["", "Authorization: Bearer secre\r\n", "Authorization: Basic secret\r\n", "Authorization: Bearer \r\n"]
    {
        let answer = chat(headers, body.as_bytes());
        assert_eq!((answer.status, answer.error()["code"].as_str()), (401, Some("invalid_api_key")));
        assert_eq!(server.request("GET", "/metrics", headers, b"").status, 401);
    }
    let prompts = |count: usize| {
        let body =
            json!({"prompt": vec!["2 + 2 ="; count], "max_tokens": 1, "temperature": 0, "uqac": false}).to_string();
        server.request("POST", "/v1/completions", key, body.as_bytes())
    };
    assert_eq!(prompts(128).json()["choices"].as_array().unwrap().len(), 128);
    let many = prompts(129);
    assert_eq!((many.status, many.error()["param"].as_str()), (400, Some("prompt")), "{}", many.body);
    let large = chat(key, &vec![b' '; (8 << 20) + 1]);
    assert_eq!((large.status, large.error()["code"].as_str()), (413, Some("request_too_large")));
    let answer = chat(&format!("{key}Content-Type: text/plain\r\n"), body.as_bytes());
    assert_eq!((answer.status, answer.error()["type"].as_str()), (415, Some("invalid_request_error")));
    assert_eq!(chat(&format!("{key}Host: example.org\r\n"), body.as_bytes()).status, 403);
    let preflight = server.request("OPTIONS", "/v1/chat/completions", "Origin: http://example.org\r\n", b"");
    assert_eq!((preflight.status, preflight.headers.get("access-control-allow-origin")), (405, None));
    assert_eq!(server.get("/v1/nothing").status, 404);
    let health = server.get("/health");
    assert_eq!((health.status, health.body.trim()), (200, r#"{"status":"ok"}"#));
    let model = server.request("GET", "/v1/models/abacus", key, b"").json();
    assert_eq!(server.request("GET", "/v1/models", key, b"").json()["data"], json!([model]));
    let other = server.request("GET", "/v1/models/other", key, b"");
    assert_eq!((other.status, other.error()["code"].as_str()), (404, Some("model_not_found")));
}

#[test]
fn the_page_is_one_file() {
    let server = Server::start(&[]);
    let page = server.get("/");
    assert_eq!((page.status, page.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    assert!(page.headers["content-security-policy"].contains("default-src 'none'"));
    assert!(!page.body.contains("{{") && !page.body.contains("://www.w3.org/1999") && page.body.contains("abacus"));
    assert!(
        page.body.contains("<h1>uqac</h1>") && page.body.contains("<button type=\"button\">What is 17 + 25?</button>")
    );
    let loads = ["src=\"", "@import", "url(", "https:"];
    assert!(!loads.iter().any(|load| page.body.contains(load)), "the page loads nothing");
}

/// A request that takes long: many choices, with one slot in the batch.
fn long_request() -> Value {
    question_of(QUESTIONS[1], json!({"n": 128, "temperature": 1.5, "seed": 1}))
}

#[test]
fn a_client_that_goes_away_is_forgotten() {
    let server = Server::start(&["--max-batch", "1"]);
    let samples = json!({"n": 1, "stream": true, "uqac": {"samples": 127}});
    for more in [json!({"stream": false}), json!({"stream": true}), samples] {
        let mut body = long_request();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let connection = server.send("POST", "/v1/chat/completions", "", body.to_string().as_bytes());
        server.wait_for("it runs", |server| server.metric("uqac_running") > 0.0);
        let before = server.metric("uqac_cancelled_total");
        drop(connection);
        server.wait_for("it is forgotten", |server| {
            server.metric("uqac_cancelled_total") > before && server.metric("uqac_running") == 0.0
        });
        let begun = Instant::now();
        server.chat(QUESTIONS[0], json!({"max_tokens": 1})).json();
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = Server::start(&["--max-batch", "1", "--queue", "2"]);
    let connection = server.send("POST", "/v1/chat/completions", "", long_request().to_string().as_bytes());
    server.wait_for("it runs", |server| server.metric("uqac_running") > 0.0);
    let (mut waiting, mut refused) = (Vec::new(), None);
    for _ in 0..4 {
        let body = question_of(QUESTIONS[0], json!({"max_tokens": 1})).to_string();
        let stream = server.send("POST", "/v1/chat/completions", "", body.as_bytes());
        std::thread::sleep(Duration::from_millis(100));
        stream.set_nonblocking(true).unwrap();
        if stream.peek(&mut [0]).is_ok() {
            stream.set_nonblocking(false).unwrap();
            refused = Some(Answer::read(stream));
            break;
        }
        stream.set_nonblocking(false).unwrap();
        waiting.push(stream);
    }
    let refused = refused.expect("one too many");
    assert_eq!((refused.status, refused.error()["code"].as_str()), (429, Some("queue_full")));
    assert!(refused.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    assert_eq!(waiting.len(), 2);
    drop(connection);
    waiting.into_iter().for_each(|stream| assert_eq!(Answer::read(stream).status, 200));
}

#[test]
#[cfg(unix)]
fn a_server_that_is_stopped_finishes_what_it_has_begun() {
    let mut server = Server::start(&["--max-batch", "4"]);
    let body = question_of(QUESTIONS[1], json!({"n": 24, "temperature": 1.2, "stream": true})).to_string();
    let connection = server.send("POST", "/v1/chat/completions", "", body.as_bytes());
    let waits =
        server.send("POST", "/v1/chat/completions", "", question_of(QUESTIONS[0], json!({})).to_string().as_bytes());
    server.wait_for("it runs", |server| server.metric("uqac_running") > 0.0);
    let terminate = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(terminate.success());
    let begun = Instant::now();
    while TcpStream::connect(&server.address).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it still listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let finished = Answer::read(connection).events();
    let ends = finished.iter().filter(|event| event["choices"][0]["finish_reason"].is_string()).count();
    assert_eq!(ends, 24);
    assert_eq!(Answer::read(waits).json()["choices"][0]["uqac"]["answer"]["text"], "42");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
