//! Synthetic run folders like those of an evaluation, generated from a seed: a latent chance c is drawn for each item,
//! the answer is correct with probability c, `p` equals c (so it is calibrated), and the other methods know less about
//! it.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use uqac::FinishReason;
use uqac::internals::Samples;
use uqac::internals::metrics::mt19937::{Mt19937, up_to};
use uqac::internals::{Answer, Status};
use uqac::internals::{EnsembleMember, ResponseTokens, Sample, Similarity, SweepPoint, Uq};
use uqac::{
    Profile,
    internals::{Link, Member},
};

/// Prompt length in tokens.
pub const N_INSTR: usize = 40;

/// A run to generate.
#[derive(Clone)]
pub struct RunSpec {
    pub model: &'static str,
    pub tasks: Vec<&'static str>,
    pub items: usize,
    pub seed: u32,
    /// Added to every item's chance of a correct answer.
    pub skill: f64,
    /// (shard, number of shards), counting from 1.
    pub shard: Option<(usize, usize)>,
    pub sweep: bool,
    /// Items 7, 57, ... have no answer; 11, 61, ... are cut off; 13 has an error.
    pub faults: bool,
}

impl RunSpec {
    pub fn new(model: &'static str, tasks: &[&'static str], items: usize) -> RunSpec {
        RunSpec { model, tasks: tasks.to_vec(), items, seed: 1, skill: 0.0, shard: None, sweep: true, faults: true }
    }

    pub fn manifest(&self) -> Value {
        json!({
            "format": 1, "version": "0.1.0", "model": {"name": self.model, "sha256": "0".repeat(64)},
            "options": {"profile": "corrected", "methods": ["all"], "seed": self.seed, "max_tokens": 1024},
            "device": "cpu",
        })
    }

    /// The samples of a task in this shard.
    pub fn samples(&self, task: &str) -> Vec<Sample> {
        let mine = |i: &usize| self.shard.is_none_or(|(shard, of)| i % of == shard - 1);
        (0..self.items).filter(mine).map(|i| self.sample(task, i)).collect()
    }

    /// Writes the run folder.
    pub fn write(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("manifest.json"), self.manifest().to_string()).unwrap();
        for task in &self.tasks {
            let shard = self.shard.map_or(String::new(), |(i, n)| format!(".shard-{i}-of-{n}"));
            let file = folder.join(format!("samples_{}{shard}.jsonl", task.replace(':', "_")));
            std::fs::write(file, lines(&self.samples(task))).unwrap();
        }
    }

    fn sample(&self, task: &str, i: usize) -> Sample {
        let hash = task.bytes().chain(self.model.bytes()).fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let mut random = Random(Mt19937::new(hash ^ self.seed.wrapping_mul(0x9E37_79B9) ^ (i as u32) << 8));
        let chance = (0.08 + 0.9 * random.uniform().max(random.uniform()) + self.skill).clamp(0.02, 0.99);
        let right = random.uniform() < chance;
        let problem = Problem::new(&mut random, right);
        let (cut, mute, broken) =
            if self.faults { (i % 50 == 11, i % 50 == 7, i == 13) } else { (false, false, false) };
        let status = match (broken, cut || mute) {
            (true, _) => Status::Error,
            (_, true) => Status::NoAnswer,
            _ => Status::Ok,
        };
        let answered = status == Status::Ok;
        let response = if cut || mute { problem.without_answer() } else { problem.response.clone() };
        let tokens = tokenize(&response, !cut, &mut random);
        let acc = f64::from(u8::from(answered && right));
        let mut metrics = BTreeMap::from([("acc".to_owned(), acc), ("acc_reference".to_owned(), acc)]);
        if i % 97 == 5 {
            metrics.insert("acc_reference".to_owned(), 1.0 - acc);
        }
        if broken {
            metrics = BTreeMap::from([("acc".to_owned(), 0.0)]);
        } else {
            metrics.insert("acc_majority".to_owned(), f64::from(u8::from((chance >= 0.5) == right)));
        }
        let uq =
            if answered { scored(&response, tokens, &problem, chance, self.sweep, &mut random) } else { empty(tokens) };
        let uq = Uq {
            status,
            error: broken.then(|| "the prompt has 5000 tokens, but the model's context is 4096".to_owned()),
            finish: if cut { FinishReason::Length } else { FinishReason::Stop },
            ..uq
        };
        Sample {
            doc_id: i,
            id: None,
            task: task.to_owned(),
            doc: json!({"question": problem.question, "answer": format!("#### {}", problem.target)}),
            target: problem.target.to_string(),
            arguments: vec![(problem.question.clone(), Map::from_iter([("temperature".to_owned(), json!(0.0))]))],
            resps: vec![vec![response]],
            filtered_resps: vec![answered.then(|| problem.said.to_string())],
            metrics,
            uq,
        }
    }
}

/// Samples as the text of a samples file.
pub fn lines(samples: &[Sample]) -> String {
    samples.iter().map(|sample| serde_json::to_string(sample).unwrap() + "\n").collect()
}

struct Random(Mt19937);

impl Random {
    /// In [0, 1)
    fn uniform(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 4_294_967_296.0
    }

    /// Approximately normal: mean 0, standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    fn among(&mut self, n: u32) -> usize {
        up_to(&mut self.0, n - 1) as usize
    }
}

struct Problem {
    question: String,
    response: String,
    target: i64,
    said: i64,
}

impl Problem {
    fn new(random: &mut Random, right: bool) -> Problem {
        let name = ["Maya", "Tom", "Aïcha", "Jiří"][random.among(4)];
        let thing = ["apples", "stamps", "marbles", "books"][random.among(4)];
        let (a, b, c) = (3 + random.among(40) as i64, 2 + random.among(9) as i64, 1 + random.among(20) as i64);
        let target = a * b + c;
        let said = if right { target } else { target + 1 + random.among(9) as i64 };
        let question = format!(
            "{name} has {b} boxes with {a} {thing} in each. {name} then finds {c} more. How many {thing} are there now?"
        );
        let mut response = format!("Let's think step by step.\n\n{name} has {b} boxes with {a} {thing} each, ");
        writeln!(response, "so that makes {a} * {b} = {} {thing}.", said - c).unwrap();
        for step in 0..random.among(6) {
            writeln!(response, "Check {}: {} + {c} is {said}.", step + 1, said - c).unwrap();
        }
        writeln!(response, "Adding the {c} that were found gives {} + {c} = {said}.", said - c).unwrap();
        write!(response, "The final answer is \\boxed{{{said}}}.").unwrap();
        Problem { question, response, target, said }
    }

    fn without_answer(&self) -> String {
        self.response.split("Adding").next().unwrap_or_default().to_owned()
    }
}

/// Words with the preceding space, runs of digits, and single punctuation marks; an end token last.
fn tokenize(text: &str, ended: bool, random: &mut Random) -> ResponseTokens {
    let kind = |c: char| {
        if c.is_ascii_digit() {
            0
        } else if c.is_alphabetic() {
            1
        } else {
            2
        }
    };
    let mut offsets: Vec<[usize; 2]> = Vec::new();
    let mut last: Option<char> = None;
    for (at, c) in text.char_indices() {
        let joins =
            last.is_some_and(|before| (kind(before) == kind(c) && kind(c) < 2) || (before == ' ' && kind(c) == 1));
        match offsets.last_mut() {
            Some(token) if joins => token[1] = at + c.len_utf8(),
            _ => offsets.push([at, at + c.len_utf8()]),
        }
        last = Some(c);
    }
    if ended {
        offsets.push([text.len(), text.len()]);
    }
    let ids = (0..offsets.len() as u32).map(|i| 1000 + i).collect();
    let logprobs = offsets.iter().map(|_| Some(-0.6 * random.uniform().powi(6))).collect();
    ResponseTokens { ids, offsets, logprobs }
}

fn empty(tokens: ResponseTokens) -> Uq {
    let generate = 0.004 * tokens.ids.len() as f64;
    Uq {
        status: Status::NoAnswer,
        reading: Profile::Corrected.into(),
        finish: FinishReason::Stop,
        prompt_len: N_INSTR,
        thought: 0,
        tokens,
        seconds: BTreeMap::from([("generate".to_owned(), generate)]),
        ..Uq::default()
    }
}

fn scored(text: &str, tokens: ResponseTokens, problem: &Problem, chance: f64, sweep: bool, random: &mut Random) -> Uq {
    let numbers: Vec<usize> = (0..tokens.ids.len())
        .filter(|&j| text[tokens.offsets[j][0]..tokens.offsets[j][1]].starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    let (answer, before) = numbers.split_last().unwrap();
    let row = |j: usize| j as i64 - 1;
    let mut chain: Vec<Link> = Vec::new();
    for (n, &j) in before.iter().enumerate() {
        let later = &numbers[n + 1..];
        let from = later[random.among(later.len() as u32)];
        let (score, similarity) = (0.5 + 2.0 * random.uniform(), random.uniform() - 0.1);
        chain.push(Link { row: row(j), score, similarity, from: Some(row(from)) });
    }
    chain.push(Link { row: row(*answer), score: 0.0, similarity: 1.0, from: None });
    let mut by_similarity: Vec<&Link> =
        chain.iter().filter(|link| link.from.is_some() && link.similarity >= 0.0).collect();
    by_similarity.sort_by(|a, b| b.similarity.total_cmp(&a.similarity));
    let mut kept: Vec<i64> = by_similarity.iter().take(10).map(|link| link.row).collect();
    kept.sort_unstable();
    let mut ensemble = vec![member(None, chance.ln() * 0.7, chance.ln() * 0.3, None)];
    for &row in kept.iter().take(4) {
        let position = (row + 1) as usize + N_INSTR;
        let log_chain = (0.02 + 0.2 * random.uniform()).ln();
        ensemble.push(member(Some(position), -3.0 * random.uniform(), log_chain, Some(random.among(90).to_string())));
    }
    let end = *answer + 1 + N_INSTR;
    let scores = scores(chance, tokens.ids.len(), random);
    let rows: Vec<i64> = chain.iter().map(|link| link.row).collect();
    let sweep = if sweep { swept(&rows, &kept, chance, random) } else { Vec::new() };
    let generated = 0.004 * tokens.ids.len() as f64;
    let seconds = [
        ("generate", generated),
        ("chain", 0.06 * generated),
        ("ensemble", 0.11 * generated),
        ("self_consistency", 4.8 * generated),
        ("verbalized", 0.15 * generated),
    ];
    let votes = (chance * 5.0).round() as usize;
    let vote = |i: usize| Some(if i < votes { problem.said } else { problem.said + 3 }.to_string());
    let drawn = serde_json::to_value(Samples {
        temperature: 0.5,
        answers: (0..5).map(vote).collect(),
        agrees: (0..5).map(|i| i < votes).collect(),
        weights: (0..5).map(|i| 0.9 - 0.05 * f64::from(i)).collect(),
        logprobs: (0..5).map(|i| Some(-f64::from(i))).collect(),
        majority: vote(if votes >= 3 { 0 } else { 4 }),
        majority_weight: 0.7,
        response_tokens: vec![tokens.ids.len(); 5],
        ..Samples::default()
    })
    .unwrap();
    let confidence = scores.get("verbalized").copied().flatten();
    let said = json!({"response": "I am fairly sure: 90 %", "confidence": confidence});
    Uq {
        status: Status::Ok,
        answer: Some(Answer { text: problem.said.to_string(), tokens: end - 1..end }),
        chain,
        kept,
        ensemble,
        similarity: Some(Similarity { chain: 0.5, response: 0.25 }),
        details: Map::from_iter([("self_consistency".to_owned(), drawn), ("verbalized".to_owned(), said)]),
        scores,
        sweep,
        seconds: seconds.map(|(stage, time)| (stage.to_owned(), time)).into(),
        ..empty(tokens)
    }
}

fn member(position: Option<usize>, log_answer: f64, log_chain: f64, text: Option<String>) -> EnsembleMember {
    EnsembleMember { member: Member { position, token: position.map(|_| 77), log_answer, log_chain }, text }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `p` is the chance itself; the others see it through noise, or on another scale.
fn scores(chance: f64, tokens: usize, random: &mut Random) -> BTreeMap<String, Option<f64>> {
    let logit = (chance / (1.0 - chance)).ln();
    let mut noisy = |noise: f64| logit + noise * random.normal();
    let mut scores: BTreeMap<String, Option<f64>> = [
        ("p", chance),
        ("p_sim", 0.8 * sigmoid(noisy(0.3))),
        ("p_attn", 0.5 * sigmoid(noisy(0.6))),
        ("sim_mean", 0.7 + 0.3 * sigmoid(noisy(0.8))),
        ("attn_mean", 0.7 + 0.3 * sigmoid(noisy(0.9))),
        ("answer_prob", sigmoid(2.0 + noisy(1.5))),
        ("answer_mean", sigmoid(2.0 + noisy(1.6))),
        ("response_prob", (-2.0 - 30.0 * sigmoid(-noisy(2.0))).exp()),
        ("response_mean", 0.9 + 0.1 * sigmoid(noisy(2.0))),
        ("predictive_entropy", -40.0 * sigmoid(-noisy(1.5))),
        ("ln_predictive_entropy", 1.0 - 1.2 * sigmoid(-noisy(1.7))),
        ("answer_entropy", -2.0 * sigmoid(-noisy(1.5))),
        ("ln_answer_entropy", 1.0 - 2.0 * sigmoid(-noisy(1.6))),
        ("trace_length", -(tokens as f64)),
        ("min_token_prob", 0.4 * sigmoid(noisy(1.8))),
        ("lowest_window", 0.8 + 0.2 * sigmoid(noisy(2.2))),
        ("self_consistency", (chance * 5.0).round() / 5.0),
        ("g4", (chance * 2.0).round()),
        ("g4_agreement", (chance * 5.0).round() / 5.0 + sigmoid((chance * 2.0).round())),
    ]
    .map(|(key, score)| (key.to_owned(), Some(score)))
    .into();
    // one in twenty is unparseable
    let said = [0.5, 0.8, 0.9, 0.95, 1.0][random.among(5)];
    scores.insert("verbalized".to_owned(), (random.among(20) > 0).then_some(said));
    scores
}

/// More distant settings lose more of the chain.
fn swept(rows: &[i64], kept: &[i64], chance: f64, random: &mut Random) -> Vec<SweepPoint> {
    let settings =
        [("k", json!(8), 0.3), ("k", json!(32), 0.2), ("theta", json!(0.7), 0.4), ("k-cache", json!("f16"), 0.02)];
    let mut point = |(key, value, loss): (&str, Value, f64)| {
        let mut left = |rows: &[i64]| rows.iter().copied().filter(|_| random.uniform() >= loss).collect::<Vec<i64>>();
        let (chain, kept) = (left(rows), left(kept));
        let p = sigmoid((chance / (1.0 - chance)).ln() + 2.0 * loss * random.normal());
        let scores = BTreeMap::from([("p".to_owned(), Some(p)), ("p_attn".to_owned(), Some(p * 0.5))]);
        SweepPoint { setting: BTreeMap::from([(key.to_owned(), value)]), chain, kept, scores }
    };
    settings.into_iter().map(&mut point).collect()
}
