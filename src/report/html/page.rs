//! The page around tables, pictures and items: `page.html`, filled in by minijinja.

use super::data::{Items, script_safe};
use crate::eval::analysis::Method;
use crate::report::pictures::Gallery;
use crate::report::svg::{Picture, escape, theme};
use crate::report::tables::Table;
use crate::report::term::sanitize::visible;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, Value, context, escape_formatter};
use serde_json::json;

/// How many tables are open from the start.
const OPEN_TABLES: usize = 2;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 3] = [include_str!("items.js"), include_str!("view.js"), include_str!("arcs.js")];

/// One model on one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub model: String,
    pub task: String,
    pub items: Items,
}

/// What a page shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub title: String,
    pub runs: Vec<Run>,
    pub tables: Vec<Table>,
    pub galleries: Vec<Gallery>,
    /// The scores that items can be filtered and sorted by; the first is the one to start with.
    pub methods: Vec<Method>,
}

impl Page {
    /// The whole file. The same input gives the same bytes.
    ///
    /// # Errors
    /// The template's own, of which none depends on the data.
    pub fn render(&self) -> Result<String, Error> {
        let items: Vec<String> = self.runs.iter().map(|run| run.items.json()).collect();
        let names: Vec<_> =
            self.runs.iter().map(|run| json!({"model": visible(&run.model), "task": visible(&run.task)})).collect();
        let methods: Vec<_> =
            self.methods.iter().map(|method| json!([visible(&method.key), visible(&method.name)])).collect();
        let head = script_safe(&json!({"methods": methods, "runs": names}).to_string());
        let page = environment().render_str(
            TEMPLATE,
            context! {
                title => self.title.as_str(),
                style => markup(STYLE.to_owned() + &theme::style_sheet()),
                tables => Value::from(Serde(&self.tables)),
                open_tables => OPEN_TABLES,
                galleries => self.galleries.iter().map(gallery).collect::<Vec<Value>>(),
                left_out => self.runs.iter().map(|run| run.items.left_out()).sum::<usize>(),
                head => markup(head),
                items => markup(items.join(",\n")),
                scripts => markup(SCRIPTS.concat()),
            },
        )?;
        Ok(page + "\n") // a template's last newline is left out
    }
}

fn gallery(gallery: &Gallery) -> Value {
    let pictures: Vec<Value> = gallery.pictures.iter().map(Picture::inline).map(markup).collect();
    context! { heading => gallery.heading.as_str(), folded => gallery.folded, pictures }
}

/// Text that the template writes as it is.
fn markup(text: String) -> Value {
    Value::from_safe_string(text)
}

/// Every other text is escaped, and what a terminal or a page would act upon made visible.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => Ok(out.write_str(&escape(text))?),
        _ => escape_formatter(out, state, value),
    });
    environment
}
