//! `uqac score`: confidences of existing responses.

use super::options::{AssessArgs, examples_and_rules, note_samples};
use super::*;
use super::{progress::Errors, progress::Progress};
use crate::eval::assess::{Request, assess, calibration, sequence};
use crate::eval::run::manifest::{Input, ScoreOptions};
use crate::io::item::{BadItem, Item, items};
use crate::io::jsonl::{LINE_LIMIT, Lines, append::Existing};
use crate::io::record::{Done, Record, Status};
use crate::{engine::Engine, engine::EngineError, engine::encode::MAX_BYTES_PER_TOKEN, eval::run::sidecar};

/// Score existing responses
///
/// An input line is {id, input_ids, n_instr} (optionally dataset and answer_span: [start, end) in the whole sequence) or
/// {id, messages | prompt, response}, or other tools' (vLLM, OpenAI, lm-evaluation-harness; see EVALUATION.md). With target
/// (or a list of alternatives) and grader (number, math, choice, exact or contains) the output has `correct`; answer_regex
/// finds the answer. It has one line per input line, in order, with status ok, no_answer or error.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = examples_and_rules(EXAMPLES))]
pub struct ScoreArgs {
    /// JSON lines, plain or gzip; - is standard input
    #[arg(short, long, value_name = "FILE")]
    input: PathBuf,
    /// JSON lines; gzip if the name ends in .gz; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Add the selected heads and the largest attention weights of each chain row
    #[arg(long)]
    explain: bool,
    /// Only the first N items of the input
    #[arg(short = 'n', long, value_name = "N", value_parser = units::whole::<u64>(0..=u64::MAX))]
    limit: Option<u64>,
    /// Keep the records of an earlier run and score only the rest
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Replace a non-empty output file
    #[arg(long)]
    overwrite: bool,
    /// Use prompts verbatim, for base models
    #[arg(long)]
    no_chat_template: bool,
    #[command(flatten)]
    assess: AssessArgs,
}

const EXAMPLES: &str = "\
Examples:
  uqac score -m Qwen/Qwen2.5-0.5B-Instruct -i responses.jsonl -o scores.jsonl
  uqac score -m Qwen/Qwen2.5-0.5B-Instruct -i responses.jsonl -o scores.jsonl --resume
  zcat responses.jsonl.gz | uqac score -m abacus -i - -o - | jq .scores.p";

pub fn run(args: &ScoreArgs) -> Result<ExitCode, Failure> {
    refuse_same_file(&args.input, &args.output)?;
    let existing = match (args.resume, args.overwrite) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Overwrite,
        _ => Existing::Refuse,
    };
    // Validate everything before loading the model and before overwriting anything.
    let AssessArgs { model, method, abstain } = &args.assess;
    let (folder, parameters, abstain) = (model.folder()?, method.parameters()?, *abstain);
    let earlier = if args.resume { sidecar::read(&args.output)? } else { None };
    let start = earlier.as_ref().and_then(|manifest| manifest.options.input.as_ref()).map_or(0, |input| input.bytes);
    let (whole, start) = Input::of(&args.input, start).map_err(FileError::at(&args.input))?.unzip();
    let lines = Lines::open(&args.input)?;
    let limit = args.limit.unwrap_or(u64::MAX);
    // unknown if the input can be read only once
    let total = if args.input.is_file() { Some(Lines::open(&args.input)?.count().min(limit)) } else { None };
    let (output, mut done) = Done::examine(&args.output, existing, parameters.reading)?;
    let mut engine = model.load(&folder)?;
    let options = ScoreOptions {
        parameters: parameters.clone(),
        chat_template: !args.no_chat_template,
        trace: args.explain,
        abstain,
        input: whole,
    };
    let manifest = manifest(&model.named().unwrap_or_default(), &folder, &engine, options)?;
    let found = calibration(&folder, &engine, Some(&manifest.model.fingerprint), &parameters.reading, abstain)?;
    note_samples(found.as_ref(), 0, "of ask and serve, --samples");
    let request = Request { calibration: found.as_ref(), abstain, trace: args.explain, ..Request::of(&parameters) };
    match earlier {
        Some(earlier) if done.records > 0 => sidecar::check(&args.output, &earlier, &manifest, start)?,
        None if done.records > 0 => note(&format!(
            "note: {} has no manifest beside it (an older version wrote none): its records are taken to be of this model, \
             these options and this input",
            args.output.display()
        )),
        _ => (),
    }
    let is_file = output.is_file();
    let mut output = output.open()?;
    if is_file {
        sidecar::write(&args.output, &manifest)?;
        signals::on_interrupt("interrupted; the same command with --resume goes on from here");
    }
    let mut tally = Tally::default();
    let mut progress = Progress::new(total, 1);
    let items = items(lines.with_limit(line_limit(&engine)));
    let mut ended = Ok(());
    let items = items.take(usize::try_from(limit).unwrap_or(usize::MAX));
    for item in items.map_while(|item| item.map_err(|error| ended = Err(error)).ok()) {
        let skipped = done.take(item.as_ref().map_or_else(|bad| &bad.id, |item| &item.id));
        if !skipped {
            let record = score(&mut engine, item, !args.no_chat_template, &request, &mut tally)?;
            output.append(&record)?;
            tally.count(&record);
        }
        progress.advance(skipped);
    }
    progress.finish();
    tally.report(progress.seconds(), &done);
    ended?;
    Ok(ExitCode::from(if tally.errors.count + done.errors > 0 { SOME_FAILED } else { 0 }))
}

/// Rejects input and output that are the same file, through links and redirections too: writing would destroy the
/// input, or feed it forever.
fn refuse_same_file(input: &Path, output: &Path) -> Result<(), CliError> {
    let standard = Path::new("-");
    let input = if input == standard { files::stdin().and_then(|file| file.metadata()) } else { input.metadata() };
    let written = if output == standard { files::stdout().and_then(|file| file.metadata()) } else { output.metadata() };
    let beside = sidecar::path(output).metadata();
    let Ok(input) = input else { return Ok(()) }; // opening it reports the error
    match [written, beside].into_iter().flatten().any(|output| files::same(&input, &output)) {
        true => Err(CliError::SameFile(output.to_owned())),
        false => Ok(()),
    }
}

/// Maximum line length in bytes: the longest tokenizable text, with every character written as `\uXXXX`, and other
/// fields.
fn line_limit(engine: &Engine) -> u64 {
    const OTHER_FIELDS: u64 = 16 << 20;
    let text = engine.spec().max_position_embeddings.saturating_mul(6 * MAX_BYTES_PER_TOKEN) as u64;
    LINE_LIMIT.min(OTHER_FIELDS.saturating_add(text))
}

/// Turns one input line into one output line. An error in an item affects only that item.
///
/// # Errors
/// The engine is lost.
fn score(
    engine: &mut Engine,
    item: Result<Item, BadItem>,
    chat: bool,
    common: &Request<'_>,
    tally: &mut Tally,
) -> Result<Record, EngineError> {
    let (parameters, reading) = (common.parameters, common.parameters.reading);
    let item = match item {
        Ok(item) => item,
        Err(bad) => return Ok(Record::error(bad.id.clone(), reading, None, bad.to_string())),
    };
    let (tokens, prompt_len, answer) = match sequence(engine, &item, chat, parameters) {
        Ok(sequence) => sequence,
        Err(error) => return Ok(Record::error(item.id, reading, None, error.to_string())),
    };
    tally.tokens += tokens.len();
    let request = common.clone().of_item(&item, answer);
    let traced = engine.trace(&tokens, prompt_len, parameters.trace_parts());
    traced.and_then(|mut traced| assess(&mut traced, item.id.clone(), &request)).or_else(|error| {
        if error.is_lost() {
            return Err(error);
        }
        let record = Record::error(item.id, reading, Some(prompt_len), error.to_string());
        Ok(Record { weights: engine.options().weights, ..record })
    })
}

/// Counts for the summary.
#[derive(Default)]
struct Tally {
    ok: usize,
    no_answer: usize,
    errors: Errors,
    /// Tokens processed by the model, without variants.
    tokens: usize,
}

impl Tally {
    fn count(&mut self, record: &Record) {
        match record.status {
            Status::Ok => self.ok += 1,
            Status::NoAnswer => self.no_answer += 1,
            Status::Error => self.errors.add(&record.id.to_string(), record.error.as_deref()),
        }
    }

    /// `earlier`: the records of earlier runs.
    fn report(&self, seconds: f64, earlier: &Done) {
        let scored = self.ok + self.no_answer + self.errors.count;
        let mut line = format!("{} in {seconds:.1} s", counted(scored, "item"));
        if self.tokens > 0 {
            line += &format!(" ({:.0} tokens/s)", self.tokens as f64 / seconds);
        }
        let errors = counted(self.errors.count, "error");
        line += &format!(": {} ok, {} without an answer, {errors}", self.ok, self.no_answer);
        if earlier.records > 0 {
            line += &format!("; {} were there already, {} of them errors", earlier.records, earlier.errors);
        }
        note(&line);
        self.errors.show();
    }
}
