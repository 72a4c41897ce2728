//! A custom score computed from the trace of a response: the mean log-probability of its number tokens, and the share
//! of the answer's attention on the prompt. (A score that the program itself should show belongs in `src/uq/scores/`.)
//! `cargo run --release --example custom_score [MODEL]`

use std::error::Error;
use std::ops::{ControlFlow, Range};
use uqac::{
    AnswerRule, Conversation, Engine, EngineOptions, GenerateOptions, Parameters, Profile, Traced, TracedSequence,
};

/// Mean ln p of the response tokens that contain a digit; `None` if there are none.
fn digit_logprob(response: &uqac::Response) -> Option<f64> {
    let logprobs: Vec<f64> = (response.prompt_len..)
        .zip(response.token_texts)
        .filter(|(_, text)| text.contains(|c: char| c.is_ascii_digit()))
        .map(|(position, _)| response.logprob_at(position))
        .collect();
    (!logprobs.is_empty()).then(|| logprobs.iter().sum::<f64>() / logprobs.len() as f64)
}

/// Share of α* that the rows predicting the answer's tokens (absolute positions) place on the prompt, in [0, 1].
fn prompt_share(traced: &mut TracedSequence, answer: Range<usize>) -> Result<f32, Box<dyn Error>> {
    let (response, mut queries) = traced.parts();
    let rows: Vec<usize> = answer.map(|position| position - 1).collect();
    let (mut prompt, mut all) = (0.0, 0.0);
    for weights in queries.attention_rows(&rows)? {
        prompt += weights.iter().take(response.prompt_len).sum::<f32>();
        all += weights.iter().sum::<f32>();
    }
    Ok(if all > 0.0 { prompt / all } else { 0.0 })
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "abacus".to_owned());
    let mut engine = Engine::load(&uqac::locate_model(&model)?, EngineOptions::default())?;
    let parameters = Parameters::published(Profile::Corrected);
    for question in ["What is 17 + 25?", "Tom has 3 boxes with 12 pencils each. He gives away 7. How many are left?"] {
        let prompt = uqac::encode_prompt(&engine, &Conversation::Prompt(question.to_owned()), true)?;
        let (_, mut traced) =
            engine.generate_traced(&prompt, &GenerateOptions::default(), |_| ControlFlow::Continue(()))?;
        let Some(found) = uqac::assess(&mut traced, AnswerRule::Auto, None, &parameters)? else { continue };
        let digits = digit_logprob(&traced.parts().0).map_or_else(|| "none".to_owned(), |mean| format!("{mean:.4}"));
        let share = prompt_share(&mut traced, found.answer.tokens.clone())?;
        let answer = found.answer.text;
        println!("{question}\n  {answer}: mean ln p of numbers {digits}, attention to the prompt {share:.2}");
    }
    Ok(())
}
