//! Golden items that reproduce exactly the float64 chain, and the chains' mean Jaccard overlap, by cache type, by the
//! rounding of products' inputs (f32, or one 16-bit term in wide passes, as on CUDA's tensor cores), by how tensor cores sum
//! those products (in chains of 32 as the kernels do, and longer), and with 8-bit weights. Also the changes of ln p of the
//! response's tokens and of P relative to the first row.
//! `cargo bench --bench precision -- GOLDEN_FOLDER MODELS_FOLDER [ROW ...]`, where GOLDEN_FOLDER contains
//! `uqac_*.jsonl.gz` and MODELS_FOLDER the model folders that those files name. ROW is a row of the table, from 1; the
//! first is always shown.

#[path = "precision/tensor_sums.rs"]
mod tensor_sums;

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tensor_sums::{Core, Sums};
use uqac::AnswerRule;
use uqac::WeightFormat::{self, File, Q8};
use uqac::internals::{InputRounding, Job, STAND_IN};
use uqac::{DType, ValueType};
use uqac::{Engine, EngineOptions};
use uqac::{Parameters, Profile};

type Configuration = (DType, ValueType, InputRounding, WeightFormat, Option<Sums>);

const fn chains(input_rounding: InputRounding, core: Core, chain: usize) -> Configuration {
    (DType::F32, ValueType::F16, input_rounding, File, Some(Sums { core, chain }))
}

const CONFIGURATIONS: [Configuration; 19] = [
    (DType::F32, ValueType::F32, InputRounding::F32, File, None),
    (DType::F32, ValueType::F16, InputRounding::F32, File, None),
    (DType::F32, ValueType::Bf16, InputRounding::F32, File, None),
    (DType::F16, ValueType::F16, InputRounding::F32, File, None),
    (DType::F16, ValueType::F32, InputRounding::F32, File, None),
    (DType::Bf16, ValueType::Bf16, InputRounding::F32, File, None),
    (DType::F32, ValueType::F16, InputRounding::OneTerm, File, None),
    (DType::F32, ValueType::F32, InputRounding::F32, Q8, None),
    (DType::F32, ValueType::Q8, InputRounding::F32, File, None),
    (DType::F32, ValueType::F16, InputRounding::OneTermAttention, File, None),
    chains(InputRounding::OneTerm, Core::H100, 32),
    chains(InputRounding::OneTerm, Core::H100, 64),
    chains(InputRounding::OneTerm, Core::H100, 128),
    chains(InputRounding::OneTerm, Core::H100, usize::MAX),
    chains(InputRounding::OneTerm, Core::A100, 32),
    chains(InputRounding::OneTerm, Core::A100, 64),
    chains(InputRounding::OneTerm, Core::A100, 128),
    chains(InputRounding::OneTermAttention, Core::H100, 64),
    chains(InputRounding::OneTermAttention, Core::H100, 128),
];

/// How the products of wide passes are summed in place of the engine's own.
static SUMS: Mutex<Option<Sums>> = Mutex::new(None);

/// For [`STAND_IN`]: the products of passes of more than 16 rows.
fn stand_in(jobs: &mut [Job], x: &[f32], n: usize) -> bool {
    let sums = *SUMS.lock().expect("no panic");
    let Some(sums) = sums.filter(|_| n > 16) else { return false };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    tensor_sums::multiply(jobs, x, n, sums, threads);
    true
}

fn read_items(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("a golden file");
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|id| id as u32).collect()
}

/// This engine's result for an item.
struct Found {
    /// The rows of the chain.
    chain: BTreeSet<i64>,
    /// ln p of the response's tokens.
    logprobs: Vec<f64>,
    p: f64,
}

fn find(engine: &mut Engine, item: &Value) -> Found {
    let prompt_len = item["n_instr"].as_u64().expect("n_instr") as usize;
    let parameters = Parameters::published(Profile::Reference);
    let mut traced = engine.trace(&ids(&item["input_ids"]), prompt_len, parameters.trace_parts()).expect("a pass");
    let rule = AnswerRule::for_dataset(item["dataset"].as_str());
    let assessed = uqac::assess(&mut traced, rule, None, &parameters).expect("a pass").expect("an answer");
    let chain = assessed.outcome.chain.iter().map(|link| link.row).collect();
    let logprobs = traced.parts().0.steps.iter().filter_map(|step| step.logprob).collect();
    Found { chain, logprobs, p: assessed.outcome.scores["p"] }
}

/// Mean and max absolute difference.
fn differences(pairs: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let differences: Vec<f64> = pairs.map(|(a, b)| (a - b).abs()).collect();
    let max = differences.iter().copied().fold(0.0, f64::max);
    (differences.iter().sum::<f64>() / differences.len().max(1) as f64, max)
}

fn main() {
    let arguments: Vec<PathBuf> = std::env::args().skip(1).filter(|a| a != "--bench").map(PathBuf::from).collect();
    let [golden, models, rows @ ..] = arguments.as_slice() else {
        eprintln!("usage: cargo bench --bench precision -- GOLDEN_FOLDER MODELS_FOLDER [ROW ...]");
        return;
    };
    let wanted = |row: usize| rows.is_empty() || row == 1 || rows.iter().any(|r| r.to_str() == Some(&row.to_string()));
    tensor_sums::check();
    STAND_IN.set(stand_in).expect("not set before");
    println!(
        "{:<30} {:>7} {:>7} {:>22} {:>9} {:>7} {:>10} {:>7} {:>20} {:>17}",
        "model",
        "K",
        "V",
        "inputs",
        "sums",
        "weights",
        "same chain",
        "Jaccard",
        "|d ln p| mean, max",
        "|d P| mean, max"
    );
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(golden).expect("a folder").map(|e| e.expect("a file").path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.to_string_lossy().ends_with(".jsonl.gz")) {
        let items = read_items(file);
        let name = items[0]["model"].as_str().expect("a model's name").to_owned();
        let mut exact: Vec<Found> = Vec::new();
        for (row, configuration) in (1..).zip(CONFIGURATIONS) {
            if !wanted(row) {
                continue;
            }
            let (k_cache, v_cache, input_rounding, weights, sums) = configuration;
            *SUMS.lock().expect("no panic") = sums;
            let (k, v) = (Some(k_cache), Some(v_cache));
            let options = EngineOptions { k_cache: k, v_cache: v, input_rounding, weights, ..EngineOptions::default() };
            let mut engine = match Engine::load(&models.join(&name), options) {
                Ok(engine) => engine,
                Err(error) => {
                    eprintln!("{name} is left out: {error}");
                    break;
                }
            };
            let found: Vec<Found> = items.iter().map(|item| find(&mut engine, item)).collect();
            let (mut same, mut jaccard) = (0, 0.0);
            for (item, found) in items.iter().zip(&found) {
                let expected = item["chain_src"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
                same += usize::from(found.chain == expected);
                jaccard +=
                    found.chain.intersection(&expected).count() as f64 / found.chain.union(&expected).count() as f64;
            }
            let pairs = || exact.iter().zip(&found);
            let tokens = pairs().flat_map(|(a, b)| a.logprobs.iter().copied().zip(b.logprobs.iter().copied()));
            let moved =
                (!exact.is_empty()).then(|| (differences(tokens), differences(pairs().map(|(a, b)| (a.p, b.p)))));
            println!("{}", line(&name, configuration, same, items.len(), jaccard, moved));
            if exact.is_empty() {
                exact = found;
            }
        }
    }
}

/// Mean and max differences of ln p and of P.
type Moved = ((f64, f64), (f64, f64));

fn line(
    name: &str,
    (k, v, input_rounding, weights, sums): Configuration,
    same: usize,
    items: usize,
    jaccard: f64,
    moved: Option<Moved>,
) -> String {
    let (share, mean) = (format!("{same}/{items}"), jaccard / items as f64);
    let input_rounding = match input_rounding {
        InputRounding::F32 => "f32",
        InputRounding::OneTerm => "one term",
        InputRounding::OneTermAttention => "one, q and weights too",
    };
    let sums = match sums {
        None => "f32".to_owned(),
        Some(Sums { core, chain: usize::MAX }) => format!("{core:?}, all"),
        Some(Sums { core, chain }) => format!("{core:?}, {chain}"),
    };
    let moved = moved.map_or(String::new(), |((mean, most), (p_mean, p_most))| {
        format!("{:>20} {:>17}", format!("{mean:.1e}, {most:.1e}"), format!("{p_mean:.1e}, {p_most:.1e}"))
    });
    format!("{name:<30} {k:>7} {v:>7} {input_rounding:>22} {sums:>9} {weights:>7} {share:>10} {mean:>7.3} {moved}")
        .trim_end()
        .to_owned()
}
