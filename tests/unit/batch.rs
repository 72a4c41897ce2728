//! Sequences that join and leave a batch, share a prefix, or are queried twice, produce the same results as alone,
//! bit for bit.

use super::families::families;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use test_support::{tiny, token_ids};
use uqac::backend::sampling::Sampling;
use uqac::backend::{DeviceChoice, Step};
use uqac::engine::{
    Engine, EngineOptions, FinishReason, GenerateOptions, Generation, Progress, Speculate, ThinkingBudget, Ticket,
    TraceParts,
};
use uqac::model::reply::Thinking;
use uqac::uq::{Traced, Variant};

/// One engine of a model with attention in all layers, and one of a model with delta nets.
fn engines() -> impl Iterator<Item = Engine> {
    let plain = tempfile::tempdir().unwrap();
    tiny::write_model(plain.path());
    [plain, tiny::delta_model()]
        .into_iter()
        .map(|folder| Engine::load(folder.path(), EngineOptions { threads: 2, ..EngineOptions::default() }).unwrap())
}

fn prompts(engine: &Engine) -> Vec<Vec<u32>> {
    let long = "How many are left? ".repeat(15);
    ["Tom has 3 boxes.", "a", &long, "What is 17 + 25?", "zz", "7 given away"]
        .iter()
        .map(|t| engine.tokenizer().encode(t, true).unwrap())
        .collect()
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn alone(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions) -> Generation {
    engine.generate(&[prompt.to_vec()], options, go_on).unwrap().remove(0)
}

#[test]
fn prompts_join_and_responses_leave() {
    for mut engine in engines() {
        let prompts = prompts(&engine);
        let whole = GenerateOptions { max_tokens: 40, sampling: Sampling::GREEDY, ..GenerateOptions::default() };
        // a token that some of them generate ends them early, so that they leave at different times
        let probe = alone(&mut engine, &prompts[3], &whole);
        let options = GenerateOptions { ends: Some(vec![probe.tokens[probe.prompt_len + 7]]), ..whole };
        let expected: Vec<Generation> = prompts.iter().map(|p| alone(&mut engine, p, &options)).collect();
        let lengths: Vec<usize> = expected.iter().map(|g| g.tokens.len() - g.prompt_len).collect();
        assert!(lengths.iter().any(|n| *n < 40), "the test needs responses of different lengths: {lengths:?}");

        let (mut waiting, mut found) = ((0..).zip(&prompts), Vec::new());
        let mut streams = HashMap::new();
        let mut batch = engine.batch(&options);
        loop {
            while batch.unfinished() < 3
                && let Some((stream, prompt)) = waiting.next()
            {
                streams.insert(batch.start(prompt, stream, &mut go_on).unwrap(), stream);
            }
            let Some((ticket, Ok(()))) = batch.next(&mut go_on).unwrap() else { break };
            let (finish, stream) = (batch.generation(ticket).unwrap().finish, streams[&ticket]);
            let mut traced = batch.take_traced(ticket).unwrap().unwrap();
            let (response, mut queries) = traced.parts();
            let expected = &expected[stream as usize];
            assert_eq!((response.tokens, response.steps), (&expected.tokens[..], &expected.steps[..]), "{stream}");
            assert_eq!(finish, expected.finish);
            // a query to one of them leaves the others unchanged
            queries.attention_rows(&[response.tokens.len() - 1]).unwrap();
            found.push(stream);
        }
        found.sort_unstable();
        assert_eq!(found, (0..prompts.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn samples_share_their_prompt_and_a_next_turn_everything() {
    for mut engine in engines() {
        let prompt = prompts(&engine)[2].clone();
        let greedy = GenerateOptions { max_tokens: 20, ..GenerateOptions::default() };
        let hot =
            GenerateOptions { sampling: Sampling { temperature: 0.5, seed: 3, ..Sampling::GREEDY }, ..greedy.clone() };
        let apart = engine.generate(&vec![prompt.clone(); 4], &hot, go_on).unwrap();
        let (_, mut traced) = engine.generate_traced(&prompt, &greedy, go_on).unwrap();
        let turn: Vec<u32> = traced.tokens().0.iter().copied().chain([5, 6, 7, 8]).collect();
        // even if a variant has just overwritten the cache
        let (response, mut queries) = traced.parts();
        let last = response.tokens.len() - 1;
        queries.score_variants(&[Variant { position: prompt.len() + 1, token: 9 }], &[last]).unwrap();
        assert_eq!(traced.generate_sharing(&vec![prompt.clone(); 4], &hot, 0..4, &mut go_on).unwrap(), apart);
        let answered =
            traced.generate_sharing(std::slice::from_ref(&turn), &greedy, [0], &mut go_on).unwrap().remove(0);
        drop(traced);
        assert_eq!(answered, alone(&mut engine, &turn, &greedy));
    }
}

#[test]
fn questions_may_be_asked_twice() {
    for mut engine in engines() {
        let tokens = engine.tokenizer().encode(&"Carl has 4 times as many marbles. ".repeat(12), true).unwrap();
        let last = tokens.len() - 1;
        let mut traced = engine.trace(&tokens, 20, TraceParts::default()).unwrap();
        let (_, mut queries) = traced.parts();
        let variants = [Variant { position: 30, token: 9 }, Variant { position: 140, token: 3 }];
        let ask = |queries: &mut uqac::engine::TraceQueries<'_>| {
            let rows = queries.attention_rows(&[35, 150, last]).unwrap();
            let cosines = queries.cosines(&[30, 150], last - 3..last).unwrap();
            (rows, cosines, queries.score_variants(&variants, &[60, 150, last]).unwrap())
        };
        let first = ask(&mut queries);
        assert_eq!(first, ask(&mut queries));
    }
}

/// A stop string cuts the response before it, in any batch; the rest equals what scoring it finds.
#[test]
fn a_stop_string_cuts_the_response_before_it() {
    for mut engine in engines() {
        let prompts = prompts(&engine);
        let whole = GenerateOptions { max_tokens: 40, sampling: Sampling::GREEDY, ..GenerateOptions::default() };
        let free = alone(&mut engine, &prompts[3], &whole);
        let text = |engine: &Engine, generation: &Generation| {
            engine.tokenizer().decode(&generation.tokens[generation.prompt_len..]).unwrap()
        };
        let written = text(&engine, &free);
        // three characters from the middle, the first of which occurs earlier only in other combinations
        let stop = written.chars().skip(12).take(3).collect::<String>();
        let at = written.find(&stop).unwrap();
        assert!(at > 0, "the test needs text before the stop string: {written:?}");
        let stopping = GenerateOptions { stop: vec!["never written".to_owned(), stop.clone(), String::new()], ..whole };
        for trace in [stopping.trace, None] {
            let options = GenerateOptions { trace, ..stopping.clone() };
            let all = engine.generate(&prompts, &options, |_| ControlFlow::Continue(())).unwrap();
            for (prompt, generation) in prompts.iter().zip(&all) {
                assert_eq!(alone(&mut engine, prompt, &options), *generation);
                assert!(!text(&engine, generation).contains(&stop));
            }
            let cut = &all[3];
            let kept = cut.tokens.len() - cut.prompt_len;
            assert_eq!((cut.finish, &cut.tokens[..]), (FinishReason::Stop, &free.tokens[..cut.tokens.len()]));
            assert!(written.starts_with(&text(&engine, cut)) && text(&engine, cut).len() <= at);
            assert_eq!(cut.steps.len(), kept + usize::from(trace.is_some()));
            assert_eq!(
                cut.steps[..kept],
                free.steps[..kept].iter().map(|s| alone_step(s, trace.is_some())).collect::<Vec<_>>()
            );
            if trace.is_some() {
                assert_eq!(cut.steps[kept].logprob, None);
            }
        }
        // the first token stays, even if the response begins with a stop string
        let first = written.chars().next().unwrap().to_string();
        let options = GenerateOptions { stop: vec![first], ..stopping };
        let one = alone(&mut engine, &prompts[3], &options);
        assert_eq!((one.tokens.len() - one.prompt_len, one.finish), (1, FinishReason::Stop));
        assert_eq!(one.steps.len(), 2);
    }
}

/// A thought over budget is closed at the same token in any batch, also as it begins, and at a limit; all other bits are those of
/// scoring the response.
#[test]
fn a_thought_over_budget_is_closed() {
    for mut engine in engines() {
        let texts = ["Tom has 3 boxes.<think>", "<think>\n", "How many are left?"];
        let prompts = texts.map(|text| engine.tokenizer().encode(text, true).unwrap());
        for (tokens, max_tokens) in [(6, 80), (0, 80), (6, 20)] {
            let thinking_budget = Some(ThinkingBudget { tokens, thinking: Thinking::Auto });
            let options = GenerateOptions { max_tokens, thinking_budget, ..GenerateOptions::default() };
            let found = engine.generate(&prompts, &options, go_on).unwrap();
            for (text, Generation { tokens: all, prompt_len, steps, .. }) in texts.iter().zip(&found) {
                let forced: Vec<usize> = (0..steps.len()).filter(|index| steps[*index].forced).collect();
                let written: Vec<u32> = forced.iter().map(|index| all[prompt_len + index]).collect();
                let written = engine.tokenizer().decode(&written).unwrap();
                assert_eq!(forced.first().copied(), text.contains("<think>").then_some(tokens));
                assert!(written.ends_with("</think>") || forced.is_empty() || max_tokens == 20, "{written:?}");
                assert!(all.len() - prompt_len <= max_tokens);
                let mut traced = engine.trace(all, *prompt_len, TraceParts::default()).unwrap();
                traced.set_forced(&[[prompt_len + tokens, prompt_len + tokens + forced.len()]]);
                assert_eq!(traced.parts().0.steps, &steps[..], "{text}");
            }
            let each: Vec<Generation> = prompts.iter().map(|prompt| alone(&mut engine, prompt, &options)).collect();
            assert_eq!(each, found);
        }
    }
}

/// A step as recorded by a traced generation, or by an untraced one.
fn alone_step(step: &Step, traced: bool) -> Step {
    if traced { step.clone() } else { Step { logprob: step.logprob, ..Step::default() } }
}

/// Rewrites a model's weights, with a head of their own; `token`'s embedding is NaN.
fn poison(folder: &Path, token: Option<u32>) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["tie_word_embeddings"] = json!(false);
    std::fs::write(path, config.to_string()).unwrap();
    let width = config["hidden_size"].as_u64().unwrap() as usize;
    tiny::write_weights(folder, &config, |name, values| {
        if let Some(token) = token.filter(|_| name == "embed_tokens") {
            values[token as usize * width..][..width].fill(f32::NAN);
        }
    });
}

/// Responses generated together: one of them reads, after some tokens, the only one that cannot be read. It ends with an error,
/// and the others do not notice.
pub(super) fn one_fails_and_the_others_go_on(folder: &Path, device: DeviceChoice) {
    let options = EngineOptions { device, threads: 2, ..EngineOptions::default() };
    let generate = GenerateOptions {
        max_tokens: 14,
        sampling: Sampling { temperature: 1.5, seed: 5, ..Sampling::GREEDY },
        ..GenerateOptions::default()
    };
    poison(folder, None);
    let mut engine = Engine::load(folder, options).unwrap();
    let prompts = prompts(&engine);
    let run = |engine: &mut Engine| {
        let (mut batch, mut ended) = (engine.batch(&generate), HashMap::new());
        let tickets: Vec<Ticket> =
            (0..).zip(&prompts).map(|(stream, prompt)| batch.start(prompt, stream, &mut go_on).unwrap()).collect();
        while let Some((ticket, outcome)) = batch.next(&mut go_on).unwrap() {
            ended.insert(ticket, outcome.map(|()| batch.generation(ticket).unwrap().clone()));
        }
        tickets.iter().map(|ticket| ended.remove(ticket).unwrap()).collect::<Vec<_>>()
    };
    let expected: Vec<Generation> = run(&mut engine).into_iter().map(Result::unwrap).collect();
    let only_in = |i: usize, token: u32| (0..prompts.len()).all(|j| j == i || !expected[j].tokens.contains(&token));
    let found = (0..prompts.len()).find_map(|i| {
        let (prompt, response) = expected[i].tokens.split_at(expected[i].prompt_len);
        let fits = |token: &&u32| !prompt.contains(token) && only_in(i, **token) && **token != tiny::END;
        response[2..response.len() - 1].iter().find(fits).map(|token| (i, *token))
    });
    let (bad, token) = found.expect("the test needs a token that only one response has");
    poison(folder, Some(token));
    let mut engine = Engine::load(folder, options).unwrap();
    for (i, found) in run(&mut engine).into_iter().enumerate() {
        match found {
            Err(error) => {
                assert_eq!(i, bad, "{error}");
                assert!(!error.is_lost() && error.to_string().contains("embed_tokens"), "{error}");
            }
            Ok(found) => assert!(i != bad && found == expected[i], "{i} of {device}"),
        }
    }
    // a prompt that has it fails before it starts, and the engine goes on
    let mut batch = engine.batch(&generate);
    assert!(batch.start(&[token, 5], 0, &mut go_on).is_err_and(|error| !error.is_lost()));
    let ticket =
        batch.start(&prompts[(bad + 1) % prompts.len()], ((bad + 1) % prompts.len()) as u64, &mut go_on).unwrap();
    assert!(matches!(batch.next(&mut go_on), Ok(Some((next, Ok(())))) if next == ticket));
    assert_eq!(batch.generation(ticket), Some(&expected[(bad + 1) % prompts.len()]));
}

#[test]
fn an_error_belongs_to_its_sequence() {
    let plain = tempfile::tempdir().unwrap();
    tiny::write_model(plain.path());
    for folder in [plain, tiny::delta_model()] {
        one_fails_and_the_others_go_on(folder.path(), DeviceChoice::Cpu);
    }
}

/// Penalized tokens are those of the reference, alone and among others, which the penalty does not change.
pub fn repetitions_are_penalized(engine: &mut Engine, reference: &mut Engine) {
    let plain = GenerateOptions { max_tokens: 24, ..GenerateOptions::default() };
    let sampling = Sampling { repetition_penalty: 3.0, ..Sampling::GREEDY };
    let penalized = GenerateOptions { sampling, ..plain.clone() };
    let prompts = prompts(engine);
    let expected: Vec<Generation> = prompts[..4]
        .iter()
        .enumerate()
        .map(|(i, prompt)| alone(engine, prompt, if i % 2 == 0 { &penalized } else { &plain }))
        .collect();
    for (i, generation) in expected.iter().enumerate().step_by(2) {
        assert_eq!(generation.tokens, alone(reference, &prompts[i], &penalized).tokens);
        let distinct = |g: &Generation| HashSet::<&u32>::from_iter(&g.tokens[g.prompt_len..]).len();
        assert!(distinct(generation) > distinct(&alone(engine, &prompts[i], &plain)), "{:?}", generation.tokens);
    }
    let mut batch = engine.batch(&plain);
    let request = batch.engine().request(&penalized);
    let mut started = HashMap::new();
    for (i, prompt) in prompts[..4].iter().enumerate() {
        let ticket = match i % 2 {
            0 => batch.start_with(None, prompt, 0, request.clone(), &mut go_on),
            _ => batch.start(prompt, 0, &mut go_on),
        };
        started.insert(ticket.unwrap(), i);
    }
    while let Some((ticket, ended)) = batch.next(&mut go_on).unwrap() {
        ended.unwrap();
        assert_eq!(batch.take(ticket).unwrap(), expected[started[&ticket]]);
    }
}

/// Likelihoods are the model's own, as in scoring the response, and guesses change nothing.
#[test]
fn a_repetition_penalty() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    for folder in [folder, tiny::delta_model()] {
        let load = |options| Engine::load(folder.path(), options).unwrap();
        let options = EngineOptions { device: DeviceChoice::Cpu, threads: 2, ..EngineOptions::default() };
        let mut engine = load(options);
        let mut reference = load(EngineOptions { device: DeviceChoice::Reference, ..options });
        repetitions_are_penalized(&mut engine, &mut reference);
        let sampling = Sampling { repetition_penalty: 1.3, temperature: 0.7, seed: 3, ..Sampling::GREEDY };
        let options = GenerateOptions { max_tokens: 30, sampling, ..GenerateOptions::default() };
        let prompt = prompts(&engine).remove(0);
        let generation = alone(&mut engine, &prompt, &options);
        engine.set_speculate(Speculate::Fixed(4));
        assert_eq!(alone(&mut engine, &prompt, &options), generation);
        let mut scored = engine.trace(&generation.tokens, generation.prompt_len, TraceParts::default()).unwrap();
        assert_eq!(scored.parts().0.steps, &generation.steps[..]);
    }
}

/// Responses that grow beyond longrope's short context on this device: the tokens are transformers', which recomputes its cache
/// there; what is recorded is what scoring the text records, whatever else runs, guesses included, also of a text that a stop string
/// cuts back to the short context. With `exact`, bit for bit.
pub fn responses_outgrow_the_short_context(device: DeviceChoice, exact: bool) {
    let family = families().into_iter().find(|family| family.name == "phi3_longrope_long").unwrap();
    tiny::write_tokenizer(&family.folder);
    let options = EngineOptions { device, threads: 2, ..EngineOptions::default() };
    let mut engine = Engine::load(&family.folder, options).unwrap();
    let tokens = [token_ids(&family.golden["input_ids"]), token_ids(&family.golden["generated"])];
    let (prompt, short) = (&tokens[0][..16], engine.spec().short_context().unwrap());
    let greedy = GenerateOptions { max_tokens: 16, ends: Some(Vec::new()), ..GenerateOptions::default() };
    let sampling = Sampling { repetition_penalty: 1.2, ..Sampling::GREEDY };
    let thinks: Vec<u32> = b"Well: <think>\n".iter().map(|byte| u32::from(*byte)).collect();
    let thinking_budget = Some(ThinkingBudget { tokens: 2, thinking: Thinking::Auto });
    // the text of tokens on both sides of the border, and of two after it
    let whole = [prompt, &tokens[1]].concat();
    let stops = [short - 2..short + 2, short + 1..short + 3].map(|range| {
        let stop = vec![engine.tokenizer().decode(&whole[range.clone()]).unwrap()];
        (range.start, GenerateOptions { stop, ..greedy.clone() })
    });
    let ends_at = |options: &GenerateOptions| stops.iter().find(|(_, stopped)| stopped.stop == options.stop);
    let kinds = [
        (prompt, stops[0].1.clone()),
        (prompt, stops[1].1.clone()),
        (prompt, greedy.clone()),
        (prompt, GenerateOptions { sampling, ..greedy.clone() }),
        (prompt, GenerateOptions { max_tokens: short + 1 - prompt.len(), ..greedy.clone() }),
        (&thinks[..], GenerateOptions { max_tokens: 90, thinking_budget, ..greedy.clone() }),
    ];
    for speculate in [Speculate::Off, Speculate::Fixed(3)] {
        engine.set_speculate(speculate);
        assert_eq!(alone(&mut engine, prompt, &greedy).tokens[prompt.len()..], tokens[1]);
        for (prompt, options) in kinds.iter().filter(|_| exact) {
            let found = alone(&mut engine, prompt, options);
            match ends_at(options) {
                Some((at, _)) => assert_eq!((found.tokens.len(), found.finish), (*at, FinishReason::Stop)),
                None => assert!(found.tokens.len() > short),
            }
            let mut scored = engine.trace(&found.tokens, prompt.len(), TraceParts::default()).unwrap();
            for (scored, found) in scored.parts().0.steps.iter().zip(&found.steps) {
                assert_eq!(*scored, Step { forced: false, ..found.clone() });
            }
            let rows = [short - 1, short, found.tokens.len() - 1].map(|row| row.min(found.tokens.len() - 1));
            let expected = scored.parts().1.attention_rows(&rows).unwrap();
            drop(scored);
            let untraced = alone(&mut engine, prompt, &GenerateOptions { trace: None, ..options.clone() });
            assert_eq!((untraced.tokens.len(), untraced.logprob()), (found.tokens.len(), found.logprob()));
            let (_, mut traced) = engine.generate_traced(prompt, options, go_on).unwrap();
            assert_eq!(traced.parts().1.attention_rows(&rows).unwrap(), expected);
        }
    }
    // prompts on both sides, which share prefixes only with those of their side
    let prompts: Vec<Vec<u32>> = [5, 16, short, short + 1, 30, 40].map(|len| tokens[0][..len].to_vec()).into();
    let expected: Vec<Generation> = prompts.iter().map(|prompt| alone(&mut engine, prompt, &greedy)).collect();
    let together = engine.generate(&prompts, &greedy, go_on).unwrap();
    for (found, expected) in together.iter().zip(&expected) {
        assert!(if exact { found == expected } else { found.tokens == expected.tokens }, "{found:?} {expected:?}");
    }
}

#[test]
fn a_response_outgrows_the_short_context() {
    responses_outgrow_the_short_context(DeviceChoice::Cpu, true);
    responses_outgrow_the_short_context(DeviceChoice::Reference, true);
}
