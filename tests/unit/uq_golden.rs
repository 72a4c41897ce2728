//! Profile `reference` compared with the outputs of the authors' own classes, without a model: given their α* rows (the
//! eight largest entries), cosines, log-probabilities and ensemble values, it must produce their chain, filter and
//! scores.

use flate2::read::GzDecoder;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;
use uqac::uq::{
    Member, Outcome, Parameters, Profile, Response, Step, TokenLogprob, Traced, Variant, ensemble, pipeline,
};

/// (golden file, model folder)
const MODELS: [(&str, &str); 3] = [
    ("uqac_gemma-3-270m.jsonl.gz", "gemma-3-270m"),
    ("uqac_qwen2.5-coder-0.5b.jsonl.gz", "qwen2.5-coder-0.5b-instruct"),
    ("uqac_smollm2-135m.jsonl.gz", "smollm2-135m-instruct"),
];

#[derive(Deserialize)]
struct Item {
    id: String,
    model: String,
    input_ids: Vec<u32>,
    #[serde(rename = "n_instr")]
    prompt_len: usize,
    ans_src: Vec<i64>,
    chain_src: Vec<i64>,
    sim_src: Vec<i64>,
    chain_scores: Vec<f64>,
    sims: Vec<f64>,
    row_top8: BTreeMap<String, Vec<(usize, f64)>>,
    token_logprob: Vec<f64>,
    scores: GoldenScores,
    ensemble: Vec<GoldenMember>,
}

#[derive(Deserialize)]
struct GoldenScores {
    ans_probs_prod: f64,
    ans_probs_mean: f64,
    attn_probs_prod: f64,
    attn_probs_mean: f64,
    sims_probs_prod: f64,
    sims_probs_mean: f64,
    pred_probs_prod: f64,
    pred_probs_mean: f64,
    ens_marginal: f64,
}

#[derive(Deserialize)]
struct GoldenMember {
    pos: Option<usize>,
    token: Option<u32>,
    log_ans: f64,
    log_seq: f64,
}

impl Item {
    fn position(&self, row: i64) -> usize {
        (row + 1 + self.prompt_len as i64) as usize
    }

    fn answer(&self) -> Range<usize> {
        let first = self.position(self.ans_src[0]);
        first..first + self.ans_src.len()
    }

    /// The probability behind their wrapped row -1, found nowhere else in the file: the remainder of their mean over
    /// the chain.
    fn wrapped_logprob(&self) -> f64 {
        let others = self.chain_src.iter().filter(|row| **row != -1);
        let known: f64 = others.map(|row| self.token_logprob[(row + 1) as usize].exp()).sum();
        (self.scores.attn_probs_mean * self.chain_src.len() as f64 - known).ln()
    }

    /// Steps from what the file contains. The text was decoded greedily, so each token before the template's end is its
    /// row's most probable; the ensemble's replacements follow it, with probabilities decreasing in their order.
    fn steps(&self) -> Vec<Step> {
        let response = &self.input_ids[self.prompt_len..];
        let of_token = |(&token, &logprob): (&u32, &f64)| Step {
            logprob: Some(logprob),
            entropy: 0.0,
            top: vec![TokenLogprob { token, logprob }],
            ..Step::default()
        };
        let mut steps: Vec<Step> = response.iter().zip(&self.token_logprob).map(of_token).collect();
        let last = TokenLogprob { token: u32::MAX, logprob: self.wrapped_logprob() };
        steps.push(Step { top: vec![last], ..Step::default() });
        for (k, member) in self.ensemble.iter().skip(1).enumerate() {
            let at = member.pos.unwrap() - self.prompt_len;
            let at = if at == 0 { response.len() } else { at };
            let logprob = (0.5 * 0.9f64.powi(k as i32)).ln();
            steps[at].top.push(TokenLogprob { token: member.token.unwrap(), logprob });
        }
        steps
    }
}

/// The engine's side, replayed from the file.
struct Replay<'a> {
    item: &'a Item,
    /// Whether positions missing from the file get the maximum weight they may have had, instead of none.
    rest_at_most: bool,
}

impl Traced for Replay<'_> {
    type Error = Infallible;

    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>, Infallible> {
        let row_of = |&row: &usize| {
            let relative = row as i64 - self.item.prompt_len as i64;
            let top = self.item.row_top8.get(&relative.to_string());
            let top = top.map_or(&[][..], Vec::as_slice);
            let rest = if self.rest_at_most && top.len() == 8 { top[7].1 as f32 * 0.9999 } else { 0.0 };
            let mut weights = vec![rest; row + 1];
            weights[0] = 0.0;
            weights[row] = 0.0;
            top.iter().for_each(|&(position, weight)| weights[position] = weight as f32);
            weights
        };
        Ok(rows.iter().map(row_of).collect())
    }

    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, Infallible> {
        let similarity = |position: usize| {
            let link = self.item.chain_src.iter().position(|&row| self.item.position(row) == position);
            link.map_or(f32::NAN, |link| self.item.sims[link] as f32)
        };
        Ok(positions.iter().flat_map(|&position| vec![similarity(position); answer.len()]).collect())
    }

    /// Their sums, spread evenly over the tokens summed.
    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>, Infallible> {
        let answer = self.item.answer();
        let score = |variant: &Variant| {
            let same = |m: &&GoldenMember| m.pos == Some(variant.position) && m.token == Some(variant.token);
            let member = self.item.ensemble.iter().find(same).expect("a variant that the authors' code has");
            let of = |position: &usize| match answer.contains(position) {
                true => member.log_ans / answer.len() as f64,
                false => member.log_seq / (positions.len() - answer.len()) as f64,
            };
            positions.iter().map(of).collect()
        };
        Ok(variants.iter().map(score).collect())
    }
}

fn shared() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared")
}

/// The tokenizer of a model folder: from `$UQAC_MODELS`, the user's cache, or the packed one next to the golden files.
fn tokenizer(folder: &str) -> Option<Tokenizer> {
    let cache = std::env::var_os("UQAC_MODELS")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/uqac-models")));
    if let Some(path) = cache.map(|cache| cache.join(folder).join("tokenizer.json")).filter(|path| path.exists()) {
        return Some(Tokenizer::from_file(path).unwrap());
    }
    let packed = File::open(shared().join("models").join(folder).join("tokenizer.json.gz")).ok()?;
    let mut json = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut json).unwrap();
    Some(Tokenizer::from_bytes(&json).unwrap())
}

/// Every golden item with the text of its response tokens; reports what is skipped and why.
fn golden_items() -> Vec<(Item, Vec<String>)> {
    let folder = shared().join("golden");
    if !folder.exists() {
        test_support::skipped(format_args!("no golden data at {}", folder.display()));
        return Vec::new();
    }
    let mut items = Vec::new();
    for (file, model) in MODELS {
        let Some(tokenizer) = tokenizer(model) else {
            test_support::skipped(format_args!("{file}: no tokenizer.json of {model}"));
            continue;
        };
        for line in BufReader::new(GzDecoder::new(File::open(folder.join(file)).unwrap())).lines() {
            let item: Item = serde_json::from_str(&line.unwrap()).unwrap();
            let text = |&token: &u32| tokenizer.decode(&[token], false).unwrap();
            let texts = item.input_ids[item.prompt_len..].iter().map(text).collect();
            items.push((item, texts));
        }
    }
    items
}

fn replay(item: &Item, token_texts: &[String], rest_at_most: bool) -> Outcome {
    let steps = item.steps();
    let response =
        Response { tokens: &item.input_ids, prompt_len: item.prompt_len, token_texts, steps: &steps, layer_means: &[] };
    let mut engine = Replay { item, rest_at_most };
    let parameters = Parameters::published(Profile::Reference);
    let Ok((outcome, _)) = pipeline::run(&response, item.answer(), None, &parameters, &mut engine);
    outcome
}

fn assert_close(found: f64, expected: f64, relative: f64, what: &str) {
    assert!((found - expected).abs() <= relative * expected.abs(), "{what}: {found} instead of {expected}");
}

/// The eight largest weights of a row suffice if filling in all others with the minimum or the maximum they may have
/// makes no difference; the authors' code itself considers five unless it has found nothing.
#[test]
fn chains_are_the_authors() {
    let (mut tested, mut deeper) = (0, Vec::new());
    for (item, texts) in golden_items() {
        let outcome = replay(&item, &texts, false);
        if replay(&item, &texts, true).chain != outcome.chain {
            deeper.push(item.id.clone());
            continue;
        }
        let rows: Vec<i64> = outcome.chain.iter().map(|link| link.row).collect();
        assert_eq!(rows, item.chain_src, "{}", item.id);
        for (link, &score) in outcome.chain.iter().zip(&item.chain_scores) {
            // α* is stored as f32
            assert_close(link.score, score, 1e-6, &format!("{}: φ of row {}", item.id, link.row));
            let from_answer = item.ans_src.contains(&link.row);
            assert_eq!(link.from.is_none(), from_answer, "{}: row {}", item.id, link.row);
            assert!(link.from.is_none_or(|from| from > link.row && rows.contains(&from)), "{}", item.id);
        }
        tested += 1;
    }
    println!("{tested} chains tested");
    assert!(deeper.is_empty(), "these look deeper than the golden data goes: {deeper:?}");
}

#[test]
fn filtered_chains_are_the_authors() {
    for (item, texts) in golden_items() {
        let outcome = replay(&item, &texts, false);
        assert_eq!(outcome.kept, item.sim_src, "{}", item.id);
        for (link, &similarity) in outcome.chain.iter().zip(&item.sims) {
            assert_close(link.similarity, similarity, 1e-6, &item.id);
        }
    }
}

#[test]
fn probabilities_are_the_authors() {
    for (item, texts) in golden_items() {
        let Outcome { scores, .. } = replay(&item, &texts, false);
        let golden = &item.scores;
        // token_logprob has seven decimals
        let close = |found, expected, what| assert_close(found, expected, 2e-6, &format!("{}: {what}", item.id));
        close(scores["answer_prob"], golden.ans_probs_prod, "∏ p(answer)");
        close(scores["answer_mean"], golden.ans_probs_mean, "mean p(answer)");
        // A small probability cannot be recovered precisely from a mean.
        let of_chain = if item.chain_src.contains(&-1) { 1e-4 } else { 2e-6 };
        assert_close(scores["p_attn"], golden.attn_probs_prod, of_chain, &format!("{}: P_attn", item.id));
        close(scores["p_sim"], golden.sims_probs_prod, "P_sim");
        close(scores["sim_mean"], golden.sims_probs_mean, "mean over the filtered chain");
        // The other models' templates end with tokens that the models did not choose: only the authors' top 5 record
        // whose probability those got.
        if item.model.starts_with("qwen") {
            close(scores["response_prob"], golden.pred_probs_prod, "∏ p(response)");
            close(scores["response_mean"], golden.pred_probs_mean, "mean p(response)");
        }
    }
}

#[test]
fn ensembles_are_the_authors() {
    for (item, texts) in golden_items() {
        let of_golden = |member: &GoldenMember| Member {
            position: member.pos,
            token: member.token,
            log_answer: member.log_ans,
            log_chain: member.log_seq,
        };
        let golden: Vec<Member> = item.ensemble.iter().map(of_golden).collect();
        assert_close(ensemble::marginal(&golden), item.scores.ens_marginal, 1e-9, &item.id);

        let outcome = replay(&item, &texts, false);
        // Their ensemble ran in float32, the pass that produced `token_logprob` in float64.
        assert_close(outcome.scores["p"], item.scores.ens_marginal, 5e-5, &item.id);
        assert_eq!(outcome.ensemble.len(), golden.len(), "{}", item.id);
        for (found, expected) in outcome.ensemble.iter().zip(&golden) {
            assert_eq!((found.position, found.token), (expected.position, expected.token), "{}", item.id);
            assert!((found.log_answer - expected.log_answer).abs() < 5e-5, "{}", item.id);
            assert!((found.log_chain - expected.log_chain).abs() < 5e-5, "{}", item.id);
        }
    }
}
