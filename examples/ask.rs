//! A question, its answer as it is generated, and how far to trust it:
//! `cargo run --release --example ask -- "Tom has 3 boxes with 12 pencils each. How many pencils are there?" [MODEL]`

use std::error::Error;
use std::io::{Write, stdout};
use std::ops::ControlFlow;
use uqac::{AnswerRule, Conversation, Engine, EngineOptions, GenerateOptions, Parameters, Profile};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let question = arguments.next().ok_or("expected QUESTION [MODEL]")?;
    let model = arguments.next().unwrap_or_else(|| "abacus".to_owned());

    let mut engine = Engine::load(&uqac::locate_model(&model)?, EngineOptions::default())?;
    let prompt = uqac::encode_prompt(&engine, &Conversation::Prompt(question), true)?;
    let (tokenizer, ends) = (engine.tokenizer().clone(), engine.spec().eos_token_ids.clone());
    let mut text = tokenizer.stream();
    let options = GenerateOptions::default();
    let (_, mut response) = engine.generate_traced(&prompt, &options, |progress| {
        let token = progress.token.token;
        if !ends.contains(&token) {
            print!("{}", text.push(token).unwrap_or_default());
        }
        match stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()), // the reader has closed the output
        }
    })?;
    println!();

    match uqac::assess(&mut response, AnswerRule::Auto, None, &Parameters::published(Profile::Corrected))? {
        None => println!("no answer was found in the response"),
        Some(found) => {
            let scores = &found.outcome.scores;
            println!("{} with P = {:.3} (P(answer) {:.3})", found.answer.text, scores["p"], scores["answer_prob"]);
        }
    }
    Ok(())
}
