//! `uqac ask`: a question, its answer and its confidence.

use super::options::{AssessArgs, EarlyArgs, examples_and_rules, note_samples, note_settings};
use super::progress::bar;
use super::*;
use crate::engine::{EngineError, FinishReason, GenerateOptions, Progress, encode::encode_prompt};
use crate::eval::assess::{Request, assess, calibration};
use crate::model::chat::{Conversation, Message};
use crate::model::tokenizer::{TextStream, Tokenizer};
use crate::report::term::{AskReport, TermStyle, one_line};
use crate::{
    backend::sampling::Sampling, eval::samples::Drawing, eval::samples::MAX_SAMPLES, io::record::AnswerRecord,
    units::count, units::number, units::whole,
};
use std::{ops::ControlFlow, time::Instant};

/// Answer a question and show the answer's confidence
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = examples_and_rules(EXAMPLES))]
pub struct AskArgs {
    /// The question; - reads it from standard input
    #[arg(value_name = "QUESTION")]
    question: String,
    /// Max tokens of the response
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = count(1..=u32::MAX.into()))]
    max_tokens: usize,
    /// Sampling temperature; 0: greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = number(0.0..=f32::MAX, "expected a number ≥ 0"))]
    temperature: f32,
    /// Sample from the smallest set of tokens with this total probability
    #[arg(long, hide_short_help = true, value_name = "P", default_value_t = 1.0, value_parser = number(0f32.next_up()..=1.0, "expected a number above 0 and at most 1"))]
    top_p: f32,
    /// Sample from the K most probable tokens; 0: from all
    #[arg(long, hide_short_help = true, value_name = "K", default_value_t = 0, value_parser = count(0..=u32::MAX.into()))]
    top_k: usize,
    /// Repetition penalty of Hugging Face's generation_config.json, on the tokens of prompt and response; 1: none
    #[arg(long, hide_short_help = true, value_name = "X", default_value_t = 1.0, value_parser = Sampling::penalty)]
    repetition_penalty: f32,
    /// Sampling seed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Also draw N responses at temperature 0.5, alongside, for the scores of their agreement: g4_agreement
    #[arg(long, value_name = "N", value_parser = count(0..=MAX_SAMPLES as u64), default_value_t = 0)]
    samples: usize,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "no_chat_template")]
    system: Option<String>,
    /// Use the question verbatim, for base models
    #[arg(long)]
    no_chat_template: bool,
    /// Print every score and the chain's table
    #[arg(long, conflicts_with = "json")]
    scores: bool,
    /// Print a JSON object only
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    assess: AssessArgs,
    #[command(flatten)]
    early: EarlyArgs,
}

const EXAMPLES: &str = "\
Examples:
  uqac ask \"What is 17 + 25?\"
  uqac ask -m Qwen/Qwen2.5-0.5B-Instruct --temperature 0.7 --seed 1 \"Who wrote Emma?\"
  uqac ask --json - < question.txt | jq .scores.p";

pub fn run(args: &AskArgs) -> Result<ExitCode, Failure> {
    let AssessArgs { model, method, abstain } = &args.assess;
    let AskArgs { temperature, top_p, top_k, seed, repetition_penalty, .. } = *args;
    let parameters = method.parameters()?;
    let question = question(&args.question)?;
    let (_, folder) = model.or_embedded()?;
    let mut engine = model.load(&folder)?;
    note_settings(&engine, repetition_penalty);
    let calibration = calibration(&folder, &engine, None, &parameters.reading, *abstain)?;
    note_samples(calibration.as_ref(), args.samples, "--samples");
    let conversation = match &args.system {
        None => Conversation::Prompt(question.clone()),
        Some(system) => Conversation::Messages(vec![Message::new("system", system), Message::new("user", &question)]),
    };
    let prompt = encode_prompt(&engine, &conversation, !args.no_chat_template)?;
    let tokenizer = engine.tokenizer().clone();
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampling: Sampling { temperature, top_p, top_k, seed, repetition_penalty },
        trace: Some(parameters.trace_parts()),
        running: args.early.running(),
        thinking_budget: args.early.budget(&parameters)?,
        ..GenerateOptions::default()
    };
    let mut stream = Stream::new(&tokenizer, !abstain);
    let (mut batch, mut drawing) = (engine.batch(&options), Drawing::default());
    let mut on_token = |_, progress: Option<Progress>| match progress {
        Some(progress) => stream.token(progress.token.token),
        None => ControlFlow::Continue(()),
    };
    let own = batch.start(&prompt, 0, &mut |progress| on_token(progress.ticket, Some(progress)))?;
    drawing.add(&batch, own, args.samples, 0, &options);
    while drawing.start(&mut batch, &mut on_token) {}
    while let Some((_, ended)) = drawing.next_or_pause(&mut batch, &mut on_token, &mut || false)? {
        ended?;
    }
    let samples = drawing.take(&mut batch, own);
    let tokens_per_second = stream.finish();
    let finish_reason = batch.generation(own).map_or(FinishReason::Interrupted, |generation| generation.finish);
    let mut traced = batch.take_traced(own).ok_or(EngineError::EmptyPrompt)??;
    let (calibration, abstain) = (calibration.as_ref(), *abstain);
    let request = Request { calibration, abstain, samples: &samples, ..Request::of(&parameters) };
    let record = assess(&mut traced, serde_json::Value::Null, &request)?;
    let report = AskReport::of(&mut traced, record)?;
    let response_tokens = traced.tokens().0.len() - prompt.len();
    let code = ExitCode::from(if report.record.withheld.is_some() { ABSTAINED } else { 0 });
    if args.json {
        let AskReport { record, text, .. } = report;
        let (question, response) = (question.as_str(), text.as_str());
        print_json(&AnswerRecord { record, question, response, finish_reason, response_tokens, tokens_per_second })?;
        return Ok(code);
    }
    print(&report.render(args.scores, TermStyle::of_stdout()))?;
    let why = match finish_reason {
        FinishReason::Length => "--max-tokens, or the model's context",
        FinishReason::Unsure => "its confidence fell below --stop-below",
        FinishReason::Stop | FinishReason::Interrupted => return Ok(code),
    };
    note(&format!("the response was cut off after {response_tokens} tokens ({why})"));
    Ok(code)
}

/// The question, read from standard input if it is `-`.
fn question(argument: &str) -> Result<String, CliError> {
    /// In bytes; more than any context holds.
    const MAX: u64 = 64 << 20;
    let read = || std::io::read_to_string(files::Capped::new(std::io::stdin(), MAX));
    let text = if argument == "-" { read() } else { Ok(argument.to_owned()) };
    let text = text.map_err(FileError::at(Path::new("standard input")))?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.trim().is_empty() { Err(CliError::NoQuestion) } else { Ok(text.to_owned()) }
}

/// The response as it is generated: its last line in a terminal, and its timing.
struct Stream<'t> {
    /// Whether the line is shown: an answer may be withheld.
    shows: bool,
    text: TextStream<&'t Tokenizer>,
    line: String,
    progress: indicatif::ProgressBar,
    /// Arrival of the first and the last token.
    times: Option<(Instant, Instant)>,
    tokens: usize,
}

impl<'t> Stream<'t> {
    fn new(tokenizer: &'t Tokenizer, shows: bool) -> Stream<'t> {
        let (text, progress) = (tokenizer.stream(), bar(None, "{spinner} {msg}"));
        Stream { shows, text, line: String::new(), progress, times: None, tokens: 0 }
    }

    fn token(&mut self, id: u32) -> ControlFlow<()> {
        let now = Instant::now();
        self.times = Some((self.times.map_or(now, |(first, _)| first), now));
        self.tokens += 1;
        if self.progress.is_hidden() {
            return ControlFlow::Continue(());
        }
        if self.shows {
            self.line += &self.text.push(id).unwrap_or_default();
        }
        if let Some(end) = self.line.trim_end().rfind('\n') {
            self.line.drain(..=end);
        }
        let speed = self.speed().map_or(String::new(), |speed| format!(" · {speed:.0} tokens/s"));
        self.progress.set_message(format!("{} tokens{speed} · {}", self.tokens, one_line(self.line.trim())));
        self.progress.tick();
        ControlFlow::Continue(())
    }

    /// Tokens per second after the first token.
    fn speed(&self) -> Option<f64> {
        let seconds = self.times.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        (self.tokens > 1 && seconds > 0.0).then(|| (self.tokens - 1) as f64 / seconds)
    }

    fn finish(self) -> Option<f64> {
        self.progress.finish_and_clear();
        self.speed()
    }
}
