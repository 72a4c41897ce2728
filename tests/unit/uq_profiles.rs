//! The three profiles on small handmade responses: one test for each difference between them, which the corresponding
//! rule alone also produces.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use uqac::backend::{Distribution, HeadAttention};
use uqac::uq::pipeline;
use uqac::uq::{ChainRule, Link, Outcome, Parameters, Profile, Reading, Response, Step, TokenLogprob, Traced, Variant};

use Profile::{Corrected, Paper, Reference};

/// A response, and an engine that returns what the test specifies.
struct Case {
    tokens: Vec<u32>,
    prompt_len: usize,
    texts: Vec<String>,
    steps: Vec<Step>,
    layer_means: Vec<Vec<f64>>,
    answer: Range<usize>,
    parameters: Parameters,
    /// α* by position of the row's token: (position, weight); other weights are 0.
    attention: BTreeMap<usize, Vec<(usize, f32)>>,
    /// Cosine to the answer by position; 1 if not given.
    similarity: BTreeMap<usize, f32>,
    rows_asked: Vec<Vec<usize>>,
    scored: Vec<(Vec<Variant>, Vec<usize>)>,
}

/// Ten instruction tokens, then one token per word; token ids are positions. Every token has p = 0.9, is the most
/// probable in its row and has no alternative; every entropy is 0.25.
fn case(words: &[&str], answer: Range<usize>) -> Case {
    let prompt_len = 10;
    let tokens: Vec<u32> = (0..(prompt_len + words.len()) as u32).collect();
    let mut steps: Vec<Step> = tokens[prompt_len..].iter().map(|&token| step(0.9, &[(token, 0.9)])).collect();
    steps.push(Step { logprob: None, ..step(1.0, &[(7, 0.8)]) });
    Case {
        tokens,
        prompt_len,
        texts: words.iter().map(|word| format!(" {word}")).collect(),
        steps,
        layer_means: Vec::new(),
        answer,
        parameters: Parameters::published(Corrected),
        attention: BTreeMap::new(),
        similarity: BTreeMap::new(),
        rows_asked: Vec::new(),
        scored: Vec::new(),
    }
}

fn step(p: f64, top: &[(u32, f64)]) -> Step {
    let top = top.iter().map(|&(token, p)| TokenLogprob { token, logprob: p.ln() }).collect();
    Step { logprob: Some(p.ln()), entropy: 0.25, top, ..Step::default() }
}

const WORDS: [&str; 20] = [
    "zebra", "cello", "maple", "quartz", "violin", "tundra", "harbor", "lantern", "pepper", "walnut", "copper",
    "glacier", "saddle", "thimble", "orchid", "falcon", "anchor", "basket", "candle", "42",
];

impl Case {
    fn attends(mut self, position: usize, weights: &[(usize, f32)]) -> Self {
        self.attention.insert(position, weights.to_vec());
        self
    }

    /// The step that predicts the token at `position`.
    fn predicted(mut self, position: usize, p: f64, top: &[(u32, f64)]) -> Self {
        self.steps[position - self.prompt_len] = step(p, top);
        self
    }

    fn assess(&mut self, reading: impl Into<Reading>) -> Outcome {
        self.run(reading, None)
    }

    fn run(&mut self, reading: impl Into<Reading>, chain: Option<Vec<Link>>) -> Outcome {
        let (tokens, texts, steps) = (self.tokens.clone(), self.texts.clone(), self.steps.clone());
        let layer_means = self.layer_means.clone();
        let response = Response {
            tokens: &tokens,
            prompt_len: self.prompt_len,
            token_texts: &texts,
            steps: &steps,
            layer_means: &layer_means,
        };
        let reading = Reading { values: *self.parameters.values(), ..reading.into() };
        let parameters = Parameters { reading, ..self.parameters.clone() };
        let Ok((outcome, _)) = pipeline::run(&response, self.answer.clone(), chain, &parameters, self);
        outcome
    }

    /// Positions of the chain's tokens, excluding the answer's.
    fn chain(&mut self, reading: impl Into<Reading>) -> Vec<i64> {
        let (n, answer) = (self.prompt_len as i64, self.answer.clone());
        let positions = self.assess(reading).chain.into_iter().map(|link| link.row + 1 + n);
        positions.filter(|&position| !answer.contains(&(position as usize))).collect()
    }

    /// (position, token) of the ensemble's members after the response itself.
    fn alternatives(&mut self, reading: impl Into<Reading>) -> Vec<(usize, u32)> {
        let members = self.assess(reading).ensemble;
        assert!(members[0].position.is_none() && members[0].token.is_none());
        members[1..].iter().map(|member| (member.position.unwrap(), member.token.unwrap())).collect()
    }
}

impl Traced for Case {
    type Error = Infallible;

    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>, Infallible> {
        self.rows_asked.push(rows.to_vec());
        let row_of = |&row: &usize| {
            let mut weights = vec![0.0; row + 1];
            for &(position, weight) in self.attention.get(&(row + 1)).into_iter().flatten() {
                weights[position] = weight;
            }
            weights
        };
        Ok(rows.iter().map(row_of).collect())
    }

    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, Infallible> {
        let of = |position| vec![self.similarity.get(position).copied().unwrap_or(1.0); answer.len()];
        Ok(positions.iter().flat_map(of).collect())
    }

    /// Every token of a variant has p = 0.1.
    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>, Infallible> {
        self.scored.push((variants.to_vec(), positions.to_vec()));
        Ok(vec![vec![0.1f64.ln(); positions.len()]; variants.len()])
    }
}

/// The corrected profile with a single rule changed.
fn only(rule: &str) -> Reading {
    Reading::new(Corrected, rule.split_once('=')).unwrap()
}

fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
}

// ── the chain ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn sources_add_up_and_targets_become_sources() {
    let mut case =
        case(&WORDS, 28..30).attends(28, &[(20, 0.3), (21, 0.6)]).attends(29, &[(20, 0.5)]).attends(20, &[(12, 0.75)]);
    let outcome = case.assess(Corrected);
    let links: Vec<_> = outcome.chain.iter().map(|link| (link.row, link.from)).collect();
    assert_eq!(links, [(1, Some(9)), (9, Some(18)), (10, Some(17)), (17, None), (18, None)]);
    assert!((outcome.chain[1].score - 0.8).abs() < 1e-6, "0.3 from the first answer token and 0.5 from the second");
}

#[test]
fn a_source_is_not_its_own_target_but_may_be_another_ones() {
    let mut case = case(&WORDS, 29..30)
        .attends(29, &[(28, 0.95), (20, 0.9), (22, 0.8)])
        .attends(20, &[(19, 0.9)])
        .attends(22, &[(20, 0.9), (21, 0.7)]);
    assert_eq!(case.chain(Corrected), [20, 22], "rows 28, 19 and 21 are the sources' own; 20 was processed");
    let mut case = case.attends(22, &[(19, 0.9)]);
    for profile in [Reference, Paper, Corrected] {
        assert_eq!(case.chain(profile), [19, 20, 22]);
    }
}

#[test]
fn reference_looks_at_five_positions_counted_before_the_filters() {
    let instruction = [(1, 0.95), (2, 0.94), (3, 0.93), (4, 0.92)];
    let mut case = case(&WORDS, 29..30).attends(29, &[&instruction[..], &[(22, 0.9), (23, 0.8), (24, 0.7)]].concat());
    assert_eq!(case.chain(Reference), [22]);
    assert_eq!(case.chain(only("positions=top5")), [22]);
    assert_eq!(case.chain(Corrected), [22, 23, 24]);
    assert_eq!(case.chain(Paper), [22, 23, 24]);
}

#[test]
fn reference_looks_deeper_only_while_it_found_nothing_and_the_chain_is_short() {
    let instruction = [(1, 0.95), (2, 0.94), (3, 0.93), (4, 0.92), (5, 0.91)];
    let mut case = case(&WORDS, 29..30).attends(29, &[&instruction[..], &[(22, 0.9), (23, 0.8)]].concat());
    assert_eq!(case.chain(Reference), [22]);
    assert_eq!(case.chain(Corrected), [22, 23]);
    case.parameters.reading.values.min_chain_length = 0;
    assert_eq!(case.chain(Reference), [0; 0]);
    assert_eq!(case.chain(Corrected), [22, 23]);
}

#[test]
fn reference_counts_what_an_earlier_source_of_the_step_found() {
    let instruction = [(1, 0.95), (2, 0.94), (3, 0.93), (4, 0.92), (5, 0.91)];
    let second = [&instruction[..], &[(23, 0.8)]].concat();
    let mut case = case(&WORDS, 28..30).attends(28, &[(22, 0.9)]).attends(29, &second);
    assert_eq!(case.chain(Reference), [22]);
    assert_eq!(case.chain(Corrected), [22, 23]);
}

#[test]
fn reference_counts_the_picks_of_a_step_twice() {
    let mut case = case(&WORDS, 29..30)
        .attends(29, &[(20, 0.4), (21, 0.3), (22, 0.2)])
        .attends(20, &[(15, 0.2), (14, 0.15), (13, 0.1)]);
    assert_eq!(case.chain(Reference), [15, 20, 21, 22]);
    assert_eq!(case.chain(only("length-count=twice")), [15, 20, 21, 22]);
    assert_eq!(case.chain(Corrected), [14, 15, 20, 21, 22]);
    assert_eq!(case.chain(Paper), [14, 15, 20, 21, 22]);
}

#[test]
fn paper_needs_more_than_the_threshold() {
    let mut case = case(&WORDS, 29..30).attends(29, &[(20, 0.75), (21, 0.5), (22, 0.25)]);
    case.parameters.reading.values.min_chain_length = 0;
    assert_eq!(case.chain(Paper), [20]);
    assert_eq!(case.chain(only("threshold=above")), [20]);
    assert_eq!(case.chain(Corrected), [20, 21]);
    assert_eq!(case.chain(Reference), [20, 21]);
}

#[test]
fn paper_takes_the_top_targets_before_it_drops_stop_words() {
    let mut words = WORDS;
    (words[11], words[12]) = ("the", "the");
    let mut case = case(&words, 29..30).attends(29, &[(21, 0.95), (22, 0.9), (23, 0.8), (24, 0.7), (25, 0.6)]);
    assert_eq!(case.chain(Paper), [23]);
    assert_eq!(case.chain(only("stop-filter=after-top")), [23]);
    assert_eq!(case.chain(Corrected), [23, 24, 25]);
    assert_eq!(case.chain(Reference), [23, 24, 25]);
}

#[test]
fn a_single_letter_is_no_stop_word_when_it_is_the_answers_form() {
    let mut words = WORDS;
    (words[12], words[19]) = ("a", "a");
    let mut case = case(&words, 29..30).attends(29, &[(22, 0.9)]);
    assert_eq!(case.chain(Corrected), [22]);
    assert_eq!(case.chain(Reference), [0; 0]);
    assert_eq!(case.chain(Paper), [0; 0]);
    assert_eq!(case.chain(only("stop-words=list")), [0; 0]);
    case.texts[19] = " 42".into();
    assert_eq!(case.chain(Corrected), [0; 0]);
}

#[test]
fn the_first_response_token_is_reached_and_has_its_own_row() {
    let mut case = case(&WORDS, 29..30).attends(29, &[(10, 0.9)]).predicted(10, 0.6, &[(10, 0.6), (77, 0.3)]);
    let (reference, corrected) = (case.assess(Reference), case.assess(Corrected));
    assert_eq!(case.rows_asked, [vec![28], vec![28], vec![9]], "reference pads row prompt_len - 1 with zeros");
    assert_eq!((reference.kept, corrected.kept), (vec![-1], vec![-1]));
    assert_close(corrected.scores["p_sim"], 0.6 * 0.9);
    assert_close(reference.scores["p_sim"], 0.8 * 0.9); // wraps to the last row, whose top-1 has 0.8
    assert_eq!((corrected.ensemble.len(), corrected.ensemble[1].token), (2, Some(77)));
    assert_eq!(reference.ensemble.len(), 1, "the only pair of the last row is taken for the original");
    assert_close(reference.ensemble[0].log_chain, 0.6f64.ln());
    let wrapped = case.assess(only("first-row=wrapped"));
    assert_close(wrapped.scores["p_sim"], 0.8 * 0.9);
    assert_eq!(wrapped.ensemble[1].token, Some(7), "the last row's alternative");
}

// ── the similarity filter ────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn the_most_similar_are_kept_and_the_answer_is_not_up_for_choice() {
    let mut case = case(&WORDS, 29..30).attends(29, &[(20, 0.9), (21, 0.8), (22, 0.7)]).attends(20, &[(12, 0.9)]);
    case.similarity = [(12, -0.01), (20, 0.2), (21, 0.3), (22, 0.2)].into();
    for profile in [Reference, Paper, Corrected] {
        case.parameters.reading.values.max_kept = 10;
        assert_eq!(case.assess(profile).kept, [9, 10, 11]);
        case.parameters.reading.values.max_kept = 2;
        assert_eq!(case.assess(profile).kept, [9, 10], "of equals the earlier");
    }
}

// ── the ensemble ─────────────────────────────────────────────────────────────────────────────────────────────────────

/// Two kept tokens, at 20 and 21, whose rows list several alternatives each.
fn two_kept() -> Case {
    case(&WORDS, 29..30)
        .attends(29, &[(20, 0.9), (21, 0.8)])
        .predicted(20, 0.5, &[(20, 0.5), (101, 0.2), (102, 0.1), (103, 0.05), (104, 0.04), (105, 0.03)])
        .predicted(21, 0.4, &[(201, 0.45), (21, 0.4), (202, 0.0099), (203, 0.009), (204, 0.008)])
}

#[test]
fn every_alternative_joins_by_position_but_in_reference_the_likeliest_pairs_of_all() {
    let mut case = two_kept();
    let all = [(20, 101), (20, 102), (20, 103), (20, 104), (20, 105), (21, 201)];
    assert_eq!(case.alternatives(Corrected), all);
    assert_eq!(case.alternatives(Paper), all);
    assert_eq!(case.alternatives(Reference), [(21, 201), (20, 101), (20, 102), (20, 103), (20, 104)]);
    assert_eq!(case.alternatives(only("candidates=most-probable")), case.alternatives(Reference));
    // of the 2 + 2 most probable pairs, originals included, two are originals
    case.parameters.reading.values.max_alternatives = 2;
    assert_eq!(case.alternatives(Reference), [(21, 201), (20, 101)]);
    assert_eq!(case.alternatives(Corrected), all);
}

#[test]
fn in_reference_an_original_outside_the_top_five_takes_the_best_pair_with_it() {
    let top = [(101, 0.3), (102, 0.2), (103, 0.1), (104, 0.09), (105, 0.08), (20, 0.07)];
    let mut case = case(&WORDS, 29..30).attends(29, &[(20, 0.9)]).predicted(20, 0.07, &top);
    assert_eq!(case.alternatives(Reference), [(20, 102), (20, 103), (20, 104), (20, 105)]);
    assert_eq!(case.alternatives(Corrected), [(20, 101), (20, 102), (20, 103), (20, 104), (20, 105)]);
}

#[test]
fn the_engine_scores_all_variants_at_once_and_p_adds_them_up() {
    let mut case = two_kept();
    let outcome = case.assess(Corrected);
    assert_eq!(case.scored.len(), 1);
    assert_eq!((case.scored[0].0.len(), &case.scored[0].1[..]), (6, &[20, 21, 29][..]));
    assert_close(outcome.scores["p_sim"], 0.5 * 0.4 * 0.9);
    assert_close(outcome.scores["p"], 0.5 * 0.4 * 0.9 + 6.0 * 0.001);
    assert_close(outcome.scores["sim_mean"], (0.5 + 0.4 + 0.9) / 3.0);
    assert_close(outcome.ensemble[3].log_answer, 0.1f64.ln());
    assert_close(outcome.ensemble[3].log_chain, 2.0 * 0.1f64.ln());
}

#[test]
fn without_alternatives_the_engine_is_not_asked_and_p_is_p_sim() {
    let mut case = case(&WORDS, 29..30).attends(29, &[(20, 0.9)]);
    let outcome = case.assess(Corrected);
    assert!(case.scored.is_empty());
    assert_close(outcome.scores["p"], outcome.scores["p_sim"]);
}

// ── probabilities, entropies, baselines ──────────────────────────────────────────────────────────────────────────────

#[test]
fn in_reference_a_token_outside_the_top_five_gets_the_top_ones_probability() {
    let top = [(101, 0.3), (102, 0.2), (103, 0.1), (104, 0.09), (105, 0.08), (29, 0.07)];
    let mut case = case(&WORDS, 29..30).predicted(29, 0.07, &top);
    assert_close(case.assess(Reference).scores["answer_prob"], 0.3);
    assert_close(case.assess(only("probabilities=top5")).scores["answer_prob"], 0.3);
    assert_close(case.assess(Corrected).scores["answer_prob"], 0.07);
    assert_close(case.assess(Paper).scores["answer_prob"], 0.07);
    assert_close(case.assess(Reference).scores["p"], 0.07); // the ensemble is exact in every profile
    assert_close(case.assess(Reference).scores["min_token_prob"], 0.07);
}

#[test]
fn reference_entropies_are_of_the_top_five_over_every_row() {
    let mut case = case(&WORDS, 27..28); // two template tokens after the answer
    let h = |p: f64| -p * p.ln();
    let reference = case.assess(Reference).scores;
    let sum = 19.0 * h(0.9) + h(0.8); // rows prompt_len.. : the first token's row is not among them, the last row is
    assert_close(reference["predictive_entropy"], -sum);
    assert_close(reference["ln_predictive_entropy"], 1.0 - sum / 20.0);
    assert_close(reference["answer_entropy"], -h(0.9));
    assert_close(reference["ln_answer_entropy"], 1.0 - h(0.9));
    let paper = case.assess(Paper).scores;
    assert_close(paper["predictive_entropy"], -0.25 * 18.0);
    assert_close(paper["ln_predictive_entropy"], 0.75);
    let corrected = case.assess(Corrected).scores;
    assert_close(corrected["predictive_entropy"], -0.25 * 18.0);
    assert_close(corrected["answer_entropy"], -0.25);
    assert_close(case.assess(only("entropies=top5")).scores["predictive_entropy"], -18.0 * h(0.9));
    case.steps[0].entropy = 1.0; // the row before the response
    assert_close(case.assess(Corrected).scores["predictive_entropy"], -0.25 * 17.0 - 1.0);
    assert_close(case.assess(only("entropy-rows=own")).scores["predictive_entropy"], -0.25 * 18.0);
}

#[test]
fn the_response_ends_at_the_answer_except_in_reference_where_it_starts_late() {
    let mut case = case(&WORDS, 27..28).predicted(28, 0.01, &[(28, 0.01)]);
    let [reference, paper, corrected] = [Reference, Paper, Corrected].map(|profile| case.assess(profile).scores);
    assert_close(reference["response_prob"], 0.9f64.powi(18) * 0.01);
    assert_close(paper["response_prob"], 0.9f64.powi(18));
    assert_close(corrected["response_prob"], 0.9f64.powi(18));
    assert_close(reference["response_mean"], (18.0 * 0.9 + 0.01) / 19.0);
    assert_close(corrected["response_mean"], 0.9);
    assert_eq!([reference["trace_length"], paper["trace_length"], corrected["trace_length"]], [-20.0, -18.0, -18.0]);
    assert_close(paper["min_token_prob"], 0.9);
    assert_close(corrected["min_token_prob"], 0.9);
    let [late, whole] = ["first-token=skipped", "response-end=sequence"].map(|rule| case.assess(only(rule)).scores);
    assert_close(late["response_prob"], 0.9f64.powi(17));
    assert_eq!((late["trace_length"], whole["trace_length"]), (-18.0, -20.0));
    assert_close(whole["response_prob"], 0.9f64.powi(19) * 0.01);
}

/// The ablation without attention: the authors' version ends with the answer's last token, whatever follows.
#[test]
fn without_a_chain_every_token_up_to_the_answers_last_is_in_it() {
    let mut case = case(&WORDS, 27..28).predicted(29, 0.01, &[(29, 0.01)]);
    case.parameters.chain = ChainRule::None;
    for (profile, first) in [(Reference, 0), (Paper, -1), (Corrected, -1)] {
        let rows: Vec<i64> = case.assess(profile).chain.iter().map(|link| link.row).collect();
        assert_eq!(rows, (first..=16).collect::<Vec<i64>>(), "{profile:?}");
    }
    assert!(case.rows_asked.is_empty());
}

/// Controls have the length of the backtracked chain, with tokens from before the answer, and draws are reproducible.
#[test]
fn controls_choose_as_many_tokens_without_attention() {
    let mut case = case(&WORDS, 29..30).attends(29, &[(20, 0.9), (21, 0.8), (22, 0.7)]);
    case.texts[2] = " 7".to_owned();
    case.texts[5] = " x12".to_owned();
    for j in [0, 1, 3, 4, 6, 7] {
        case.texts[j] = " the".to_owned();
    }
    case.similarity = (10..29).map(|at| (at, if [13, 17, 28].contains(&at) { 0.8 } else { 0.1 })).collect();
    assert_eq!(case.chain(Corrected), [20, 21, 22]);
    let mut draw = |chain, draw| {
        (case.parameters.chain, case.parameters.draw) = (chain, draw);
        case.chain(Corrected)
    };
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..200 {
        let random = draw(ChainRule::Random, number);
        assert_eq!((random.len(), random.is_sorted()), (3, true));
        assert!(random.iter().all(|at| (10..29).contains(at)));
        assert_eq!(random, draw(ChainRule::Random, number));
        seen.extend(random);
        assert_eq!(draw(ChainRule::RandomDigits, number), [12, 15], "all there are");
        assert_eq!(draw(ChainRule::DigitsMatched, number), [20, 21, 22], "a chain without digits stays");
        let content = draw(ChainRule::RandomContent, number);
        assert!(content.len() == 3 && content.iter().all(|at| ![10, 11, 13, 14, 16, 17].contains(at)), "{content:?}");
    }
    assert_eq!(seen.into_iter().collect::<Vec<i64>>(), (10..29).collect::<Vec<i64>>(), "each may be drawn");
    assert_eq!(draw(ChainRule::Similarity, 0), [13, 17, 28]);
    // one of the chain's tokens gets a digit: it is swapped for any of the three, and the others stay
    case.texts[11] = " 9".to_owned();
    let mut exchanged = std::collections::BTreeSet::new();
    for number in 0..200 {
        (case.parameters.chain, case.parameters.draw) = (ChainRule::DigitsMatched, number);
        let chain = case.chain(Corrected);
        assert!(chain.len() == 3 && chain.ends_with(&[20, 22]) || chain == [20, 21, 22], "{chain:?}");
        exchanged.insert(chain.into_iter().find(|at| ![20, 22].contains(at)).unwrap());
    }
    assert_eq!(exchanged.into_iter().collect::<Vec<i64>>(), [12, 15, 21]);
    // the answer's own tokens belong to every chain
    case.parameters.chain = ChainRule::Random;
    let outcome = case.assess(Corrected);
    assert!(outcome.chain.iter().any(|link| link.row == 18 && link.from.is_none()));
    assert!(outcome.chain.iter().filter(|link| link.row != 18).all(|link| link.from == Some(18)));
}

#[test]
fn in_reference_no_token_of_a_member_is_less_probable_than_1e_12() {
    let mut case = case(&WORDS, 29..30).attends(29, &[(20, 0.9)]).predicted(20, 1e-20, &[(101, 0.9)]);
    let own = |outcome: Outcome| outcome.ensemble[0].log_chain;
    assert_close(own(case.assess(Corrected)), 1e-20f64.ln());
    assert_close(own(case.assess(Reference)), 1e-12f64.ln());
    assert_close(own(case.assess(only("member-floor=1e-12"))), 1e-12f64.ln());
}

#[test]
fn the_lowest_window_is_sixty_four_tokens_long() {
    let words = ["zebra"; 200];
    let mut case = case(&words, 209..210);
    (60..80).for_each(|j| case.steps[j].logprob = Some(0.2f64.ln()));
    let mean = (20.0 * 0.2f64.ln() + 44.0 * 0.9f64.ln()) / 64.0;
    assert_close(case.assess(Corrected).scores["lowest_window"], mean.exp());
    case.answer = 19..20;
    assert_close(case.assess(Corrected).scores["lowest_window"], 0.9);
}

#[test]
fn g4_is_four_parts_each_over_its_spread() {
    let mut case = case(&WORDS, 29..30); // the answer is the one token with a digit
    let nll = -0.9f64.ln();
    let of = |digits: f64| {
        let parts = [20.0 * nll, 20.0 * 0.25, 0.25, digits].map(f64::ln);
        -(parts[0] / 0.925 + parts[1] / 0.784 + parts[2] / 2.082 + parts[3] / 2.481) / 4.0
    };
    assert_close(case.assess(Corrected).scores["g4"], of(nll));
    case.texts[19] = " zebra".to_owned();
    assert_close(case.assess(Corrected).scores["g4"], of(1e-4));
}

#[test]
fn logarithms_are_those_of_the_products_and_do_not_underflow() {
    let mut case = case(&WORDS, 28..30).attends(28, &[(20, 0.6)]);
    let scores = case.assess(Corrected).scores;
    for (log, product) in [
        ("answer_logprob", "answer_prob"),
        ("response_logprob", "response_prob"),
        ("attn_logprob", "p_attn"),
        ("sim_logprob", "p_sim"),
        ("p_logprob", "p"),
    ] {
        assert_close(scores[log], scores[product].ln());
    }
    case.steps[18].logprob = Some(-800.0);
    let scores = case.assess(Corrected).scores;
    assert_eq!((scores["p"], scores["response_prob"]), (0.0, 0.0));
    assert_close(scores["p_logprob"], -800.0 + 2.0 * 0.9f64.ln());
    assert_close(scores["response_logprob"], -800.0 + 19.0 * 0.9f64.ln());
}

#[test]
fn content_is_what_is_no_stop_word() {
    let words = ["the", "zebra", ",", "is", "cello", "of", "42"];
    let mut case = case(&words, 16..17);
    for (j, p) in [(0, 0.1f64), (2, 0.2), (3, 0.3), (5, 0.4), (4, 0.5)] {
        case.steps[j].logprob = Some(p.ln());
    }
    let scores = case.assess(Corrected).scores;
    assert_close(scores["content_min_prob"], 0.5);
    assert_close(scores["content_logprob"], (0.9f64 * 0.5 * 0.9).ln());
    assert_close(scores["content_mean_logprob"], (0.9f64 * 0.5 * 0.9).ln() / 3.0);
    assert_close(scores["content_entropy"], -0.25);
}

/// Token j's distribution has j in each field, except for the dominant tokens.
fn distribution(j: usize) -> Distribution {
    let x = j as f64;
    let (dominant, dominant_logprob) = if j.is_multiple_of(2) { (0.95, 0.8f64.ln()) } else { (0.0, f64::INFINITY) };
    Distribution { top_logprob: -x, uniform_kl: 2.0 * x, log_affinity: -x, dominant, dominant_logprob }
}

#[test]
fn what_needs_a_wide_trace_is_there_with_one_alone() {
    let mut case = case(&WORDS, 28..30);
    let before = case.assess(Corrected).scores;
    assert_eq!((before.get("deepconf"), before.get("renyi_answer"), before.get("boosted_prob")), (None, None, None));
    case.steps.iter_mut().enumerate().for_each(|(j, step)| step.distribution = Some(distribution(j)));
    let scores = case.assess(Corrected).scores;
    // tokens 0 to 19, with 18 and 19 as the answer
    for key in ["deepconf", "deepconf_tail", "deepconf_bottom_64", "deepconf_lowest"] {
        assert_close(scores[key], 9.5);
    }
    assert_close(scores["deepconf_answer"], 18.5);
    assert_close(scores["self_certainty"], 19.0);
    assert_close(scores["self_certainty_answer"], 37.0);
    assert_close(scores["renyi"], 19.0);
    let fisher_rao = |x: f64| (-x).exp().acos() * std::f64::consts::FRAC_2_PI;
    assert_close(scores["fisher_rao_answer"], (fisher_rao(18.0) + fisher_rao(19.0)) / 2.0);
    // p = 0.9 is dominant in every second step
    assert_close(scores["boosted_prob"], (0.95 + 0.9) / 2.0);
    assert_eq!(before.iter().count() + 16, scores.iter().count());
    assert!(before.iter().all(|(score, value)| scores.get(score.key) == Some(value)));
}

#[test]
fn scores_of_where_heads_attend_follow_their_formulas() {
    let mut case = case(&["zebra", "cello", "42"], 12..13);
    assert_eq!(case.assess(Corrected).scores.get("rauq"), None);
    // own weights by layer and head; the first row's are ignored
    let own = [[0.9, 0.9], [0.5, 0.2], [0.0, 0.1]];
    for (j, step) in case.steps.iter_mut().enumerate() {
        let head =
            |own: f32| HeadAttention { own: if j == 0 { 1.0 } else { own }, prompt: 0.5, ..HeadAttention::default() };
        step.heads = own.iter().map(|heads| heads.iter().map(|own| head(*own)).collect()).collect();
    }
    let scores = case.assess(Corrected).scores;
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    // layers 1 and 2 of three; in layer 2, head 1: c = 0.9, 0.18 + 0.08 · 0.9, 0.18 + 0.08 · 0.252
    near(scores["rauq"], (0.9f64.ln() + 0.252f64.ln() + 0.20016f64.ln()) / 3.0 - 1.0);
    near(scores["attention_score"], 0.5f64.ln() + 0.2f64.ln());
    near(scores["lookback_ratio"], (0.05 / 0.55 + 0.05 / 0.3) / 2.0);
}

#[test]
fn chains_of_embeddings_follow_their_formulas() {
    let mut case = case(&WORDS, 28..30);
    assert_eq!(case.assess(Corrected).scores.get("coe_r"), None);
    // moves of 1, 1, 1 along a path of √5; turns of 45°, 45°, 45° out of 135°
    case.layer_means = vec![vec![1.0, 0.0], vec![1.0, 1.0], vec![0.0, 1.0], vec![-1.0, 1.0]];
    let scores = case.assess(Corrected).scores;
    let (way, turn) = (1.0 / 5.0f64.sqrt(), 1.0 / 3.0);
    assert_close(scores["coe_r"], way - turn);
    assert_close(scores["coe_c"], way);
    // and with different lengths
    case.layer_means = vec![vec![1.0, 0.0], vec![3.0, 0.0], vec![0.0, 3.0]];
    let scores = case.assess(Corrected).scores;
    let (moves, turns) = ([2.0 / 10.0f64.sqrt(), 3.0 * 2.0f64.sqrt() / 10.0f64.sqrt()], [0.0f64, 1.0]);
    assert_close(scores["coe_r"], (moves[0] + moves[1]) / 2.0 - 0.5);
    let (x, y) = (moves[0] + moves[1] * turns[1].cos(), moves[1] * turns[1].sin());
    assert_close(scores["coe_c"], x.hypot(y) / 2.0);
    // a response without turns has no chain of embeddings
    case.layer_means = vec![vec![1.0, 0.0], vec![2.0, 0.0]];
    assert_eq!(case.assess(Corrected).scores.get("coe_c"), None);
}

// ── degenerate cases ─────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn an_answer_that_attends_to_nothing_is_its_own_chain() {
    for profile in [Reference, Paper, Corrected] {
        let outcome = case(&WORDS, 28..30).assess(profile);
        assert_eq!(outcome.chain.iter().map(|link| link.row).collect::<Vec<_>>(), [17, 18]);
        assert!(outcome.kept.is_empty());
        let scores = outcome.scores;
        for p in [scores["answer_prob"], scores["p_attn"], scores["p_sim"], scores["p"]] {
            assert_close(p, 0.81);
        }
    }
}

#[test]
fn an_answer_at_the_very_start_and_a_response_of_one_token() {
    let mut long = case(&WORDS, 10..11);
    assert_close(long.assess(Corrected).scores["p"], 0.9);
    assert_close(long.assess(Reference).scores["answer_prob"], 0.8); // wraps to the last row
    assert_close(long.assess(Reference).scores["p"], 0.9);
    for profile in [Reference, Paper, Corrected] {
        let outcome = case(&["42"], 10..11).assess(profile);
        assert_close(outcome.scores["p"], 0.9);
        assert_eq!((outcome.chain[0].row, outcome.chain.len()), (-1, 1));
        assert!(serde_json::to_string(&outcome.scores).is_ok_and(|json| !json.contains("null")));
    }
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "that is the input under test")]
fn impossible_answers_have_no_confidence() {
    for profile in [Reference, Paper, Corrected] {
        for answer in [15..15, 20..12, 0..5, 30..40, 100..200, usize::MAX..usize::MAX] {
            let scores = case(&WORDS, answer).assess(profile).scores;
            assert_eq!([scores["answer_prob"], scores["p_attn"], scores["p_sim"], scores["p"]], [0.0; 4]);
        }
        for prompt_len in [0, 30, 1000] {
            let mut shapeless = case(&WORDS, 0..1000);
            shapeless.prompt_len = prompt_len;
            shapeless.steps.clear();
            shapeless.texts.clear();
            assert_eq!(shapeless.assess(profile).scores["p"], 0.0);
            shapeless.tokens.clear();
            assert_eq!(shapeless.assess(profile).scores["p"], 0.0);
        }
    }
}

#[test]
fn a_given_chain_takes_the_place_of_the_computed_one() {
    let link = |row| Link { row, score: 0.0, similarity: 0.0, from: None };
    let mut case = case(&WORDS, 29..30).predicted(12, 0.5, &[(12, 0.5), (99, 0.4)]);
    let outcome = case.run(Corrected, Some([500, 1, 3, 1, -7, 18].map(link).to_vec()));
    assert!(case.rows_asked.is_empty());
    assert_eq!(outcome.chain.iter().map(|link| link.row).collect::<Vec<_>>(), [1, 3, 18]);
    assert_eq!(outcome.kept, [1, 3]);
    assert_close(outcome.scores["p_attn"], 0.5 * 0.9 * 0.9);
    assert_eq!(outcome.ensemble.len(), 2);
}
