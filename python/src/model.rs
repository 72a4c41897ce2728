//! A loaded model: a thread that owns its engine and runs jobs sequentially.

use crate::events::{Event, Events, Reporter, events};
use crate::jobs::{self, Loaded, Question, Rows};
use crate::options::{Load, Options, failed, from_json, invalid};
use pyo3::prelude::*;
use serde_json::json;
use std::sync::mpsc::{Sender, channel};
use uqac::Item;
use uqac::{Conversation, Engine, locate_model};

type Job = Box<dyn FnOnce(&mut Loaded) + Send>;

/// A model that is ready to run. It may be used from several threads; their jobs run one after the other.
#[pyclass(frozen, module = "uqac._uqac")]
pub struct Model {
    jobs: Sender<Job>,
    /// The process that owns the thread; a fork does not have it.
    process: u32,
}

#[pymethods]
impl Model {
    /// Loads a model; the second value is a JSON event describing how it runs.
    #[staticmethod]
    fn load(name: String, options: &str) -> PyResult<(Model, Events)> {
        let options = from_json::<Load>(options)?;
        let (options, template_args) = (options.engine()?, options.template_args);
        let (jobs, queue) = channel::<Job>();
        let (reporter, events) = events();
        let work = move || {
            let folder = locate_model(&name).map_err(|error| error.to_string());
            let loaded = folder.and_then(|folder| {
                let mut engine = Engine::load(&folder, options).map_err(|error| error.to_string())?;
                engine.set_template_arguments(template_args);
                Ok(Loaded::new(engine, folder))
            });
            let mut loaded = match loaded {
                Ok(loaded) => loaded,
                Err(why) => return reporter.send(Event::Failed(why)),
            };
            reporter.send(Event::Text(description(&name, &loaded)));
            drop(reporter);
            queue.into_iter().for_each(|job| job(&mut loaded));
        };
        std::thread::Builder::new().name("uqac".to_owned()).spawn(work).map_err(failed)?;
        Ok((Model { jobs, process: std::process::id() }, events))
    }

    /// Answers questions: conversations in JSON, each a string or a list of messages.
    fn ask(&self, conversations: &str, options: &str) -> PyResult<Events> {
        let (questions, options): (Vec<Question>, Options) = (from_json(conversations)?, from_json(options)?);
        let parameters = options.parameters()?;
        let generate = options.generate(&parameters)?;
        self.submit(move |loaded, reporter| jobs::ask(loaded, &questions, &options, &parameters, &generate, reporter))
    }

    /// Scores existing responses: lines as `uqac score` reads them.
    fn score(&self, lines: Vec<String>, options: &str) -> PyResult<Events> {
        let options: Options = from_json(options)?;
        let parameters = options.parameters()?;
        let items: Vec<_> = (1..).zip(&lines).map(|(number, line)| Item::parse(line.as_bytes(), number)).collect();
        self.submit(move |loaded, reporter| {
            for (index, item) in items.into_iter().enumerate() {
                if reporter.is_stopped() {
                    break;
                }
                let response = jobs::score(loaded, item, &options, &parameters);
                reporter.send(Event::Response(index, Box::new(response)));
            }
        })
    }

    /// The full trace that the engine recorded of an item's response. `rows`, in JSON: positions of rows of α*,
    /// `"chain"` or `"all"`.
    fn trace(&self, line: &str, rows: &str, options: &str) -> PyResult<Events> {
        let (rows, options): (Rows, Options) = (from_json(rows)?, from_json(options)?);
        let parameters = options.parameters()?;
        let item = Item::parse(line.as_bytes(), 1).map_err(|bad| invalid(bad.problem))?;
        self.submit(move |loaded, reporter| {
            reporter.send(jobs::trace(loaded, item, &rows, &options, &parameters).unwrap_or_else(Event::Failed));
        })
    }

    /// The tokens of a conversation, up to the start of the response.
    fn encode(&self, conversation: &str, chat_template: bool) -> PyResult<Events> {
        let question: Question = from_json(conversation)?;
        let conversation = Conversation::from(&question);
        self.submit(move |loaded, reporter| {
            let tokens = uqac::encode_prompt(&loaded.engine, &conversation, chat_template);
            reporter.send(tokens.map_or_else(|error| Event::Failed(error.to_string()), Event::Ids));
        })
    }

    /// The text of tokens.
    fn decode(&self, tokens: Vec<u32>) -> PyResult<Events> {
        self.submit(move |loaded, reporter| {
            let text = loaded.engine.tokenizer().decode(&tokens);
            reporter.send(text.map_or_else(|error| Event::Failed(error.to_string()), Event::Text));
        })
    }
}

impl Model {
    fn submit(&self, job: impl FnOnce(&mut Loaded, &Reporter) + Send + 'static) -> PyResult<Events> {
        if self.process != std::process::id() {
            return Err(failed(
                "the model was loaded before this process was forked; load it in the process that uses it",
            ));
        }
        let (reporter, events) = events();
        let job = move |loaded: &mut Loaded| {
            if !reporter.is_stopped() {
                job(loaded, &reporter);
            }
        };
        self.jobs.send(Box::new(job)).map_err(|_| failed("the model's thread has ended"))?;
        Ok(events)
    }
}

/// The model's properties and how it runs, as JSON.
fn description(name: &str, Loaded { engine, folder, .. }: &Loaded) -> String {
    let (k_cache, v_cache) = engine.cache_types();
    json!({
        "name": name,
        "folder": folder,
        "architecture": engine.spec().architecture,
        "context": engine.spec().max_position_embeddings,
        "num_layers": engine.spec().layers.len(),
        "num_attention_heads": engine.spec().num_attention_heads,
        "eos_token_ids": engine.spec().eos_token_ids,
        "device": engine.device(),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "cuda_fallback_reason": engine.cuda_fallback_reason().map(ToString::to_string),
    })
    .to_string()
}
