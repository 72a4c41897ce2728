//! How many golden items keep exactly the float64 chain, and the mean Jaccard overlap of the chains, by cache type and by
//! how products treat their inputs: in f32, or rounded to two 16-bit terms in wide passes, as CUDA's tensor cores do.
//! `cargo bench --bench precision -- GOLDEN_FOLDER MODELS_FOLDER`, where GOLDEN_FOLDER holds `uqac_*.jsonl.gz` and
//! MODELS_FOLDER the model folders those files name.

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use uqac::backend::CacheType::{self, Bf16, F16, F32};
use uqac::backend::cpu::Products;
use uqac::engine::{Engine, EngineOptions};
use uqac::scoring;
use uqac::uq::answer::AnswerRule;
use uqac::uq::{Parameters, Profile, chain};

const VARIANTS: [(CacheType, CacheType, Products); 8] = [
    (F32, F32, Products::F32),
    (F32, F16, Products::F32),
    (F32, Bf16, Products::F32),
    (F16, F16, Products::F32),
    (F16, F32, Products::F32),
    (Bf16, Bf16, Products::F32),
    (F32, F16, Products::TwoTerms),
    (F16, F16, Products::TwoTerms),
];

fn read_items(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("a golden file");
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|id| id as u32).collect()
}

/// The rows of the chain that this engine finds.
fn chain_rows(engine: &mut Engine, item: &Value) -> BTreeSet<i64> {
    let n_instr = item["n_instr"].as_u64().expect("n_instr") as usize;
    let parameters = Parameters::published(Profile::Reference);
    let mut traced = engine.trace(&ids(&item["input_ids"]), n_instr, Profile::Reference).expect("a pass");
    let rule = AnswerRule::for_dataset(item["dataset"].as_str());
    let answer = scoring::find(&traced, rule, None, Profile::Reference).expect("decodes").expect("an answer");
    let (response, mut questions) = traced.parts();
    let links = chain::attention_chain(&response, answer.tokens, &parameters, &mut questions).expect("a chain");
    links.into_iter().map(|link| link.row).collect()
}

fn main() {
    let arguments: Vec<PathBuf> = std::env::args().skip(1).filter(|a| a != "--bench").map(PathBuf::from).collect();
    let [golden, models] = arguments.as_slice() else {
        eprintln!("usage: cargo bench --bench precision -- GOLDEN_FOLDER MODELS_FOLDER");
        return;
    };
    println!(
        "{:<30} {:>8} {:>8} {:>10} {:>12} {:>9}",
        "model", "K cache", "V cache", "products", "same chain", "Jaccard"
    );
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(golden).expect("a folder").map(|e| e.expect("a file").path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.to_string_lossy().ends_with(".jsonl.gz")) {
        let items = read_items(file);
        let name = items[0]["model"].as_str().expect("a model's name").to_owned();
        for (k_cache, v_cache, products) in VARIANTS {
            let (k, v) = (Some(k_cache), Some(v_cache));
            let options = EngineOptions { k_cache: k, v_cache: v, products, ..EngineOptions::default() };
            let mut engine = match Engine::load(&models.join(&name), options) {
                Ok(engine) => engine,
                Err(error) => {
                    eprintln!("{name} is left out: {error}");
                    break;
                }
            };
            let (mut same, mut jaccard) = (0, 0.0);
            for item in &items {
                let expected = item["chain_src"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
                let found = chain_rows(&mut engine, item);
                same += usize::from(found == expected);
                jaccard += found.intersection(&expected).count() as f64 / found.union(&expected).count() as f64;
            }
            let share = format!("{same}/{}", items.len());
            let (k, v, mean) = (k_cache.name(), v_cache.name(), jaccard / items.len() as f64);
            let products = if products == Products::F32 { "f32" } else { "two terms" };
            println!("{name:<30} {k:>8} {v:>8} {products:>10} {share:>12} {mean:>9.3}");
        }
    }
}
