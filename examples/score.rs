//! Scores an existing response, here a correct and an incorrect version, and shows every score of the
//! registry:
//! `cargo run --release --example score [MODEL]`

use std::error::Error;
use uqac::as_shown;
use uqac::{AnswerRule, Conversation, Encoding, Engine, EngineOptions, Parameters, Profile};

const QUESTION: &str = "Tom has 3 boxes with 12 pencils each. He gives away 7. How many are left?";
const RESPONSES: [&str; 2] = [
    "Tom has 3 * 12 = 36 pencils.\nAfter that there are 36 - 7 = 29 pencils.\nThe answer is \\boxed{29}.",
    "Tom has 3 * 12 = 38 pencils.\nAfter that there are 38 - 7 = 31 pencils.\nThe answer is \\boxed{31}.",
];

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "abacus".to_owned());
    let mut engine = Engine::load(&uqac::locate_model(&model)?, EngineOptions::default())?;
    let question = Conversation::Prompt(QUESTION.to_owned());
    let parameters = Parameters::published(Profile::Corrected);

    for response in RESPONSES {
        let (tokens, prompt_len) = uqac::encode(&engine, &question, response, true, Encoding::Separate)?;
        let mut traced = engine.trace(&tokens, prompt_len, parameters.trace_parts())?;
        let found = uqac::assess(&mut traced, AnswerRule::Auto, None, &parameters)?.ok_or("no answer")?;
        println!("\nanswer {}", found.answer.text);
        for score in as_shown() {
            if let Some(value) = found.outcome.scores.get(score.key) {
                println!("{:22} {value:10.4}  {}", score.key, score.meaning);
            }
        }
    }
    Ok(())
}
