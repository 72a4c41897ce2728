//! The page around tables, pictures and items, and the frame of all pages: templates, filled in by minijinja.

use super::data::{Items, script_safe};
use crate::report::svg::{Picture, escape, theme};
use crate::report::tables::{Table, heads, meaning};
use crate::report::{finding::Finding, pictures::Gallery, term::sanitize::visible};
use crate::{eval::analysis::Method, uq::answer::pattern};
use minijinja::{AutoEscape, Environment, Value, context, escape_formatter, value::Serde};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Number of tables open initially.
const OPEN_TABLES: usize = 2;

/// Contents of a page, within the frame shared by all pages.
pub struct Document<'a> {
    pub title: &'a str,
    /// A template; `heat` and `legend` are the fields and text for what [`RESPONSE_SCRIPTS`] draw.
    pub body: &'a str,
    pub style: &'a str,
    pub script: &'a str,
    /// Whether the script may connect to its own server.
    pub connects: bool,
    /// The script's data, in the element `head`.
    pub head: serde_json::Value,
}

/// Draws a response with its chain, from an item of `data.rs` and the data in the page's element `head`.
const RESPONSE_SCRIPTS: &str = concat!(include_str!("dom.js"), include_str!("view.js"), include_str!("arcs.js"));

impl Document<'_> {
    /// The whole file and its content security policy: the page loads nothing, and only its own style and script are
    /// allowed, each by its hash.
    pub fn render(&self, data: Value) -> (String, String) {
        let style = format!("\n{}{}", include_str!("page.css"), self.style);
        let script = format!("\n\"use strict\";\n{RESPONSE_SCRIPTS}{}", self.script);
        let hash = |text: &str| format!("'sha256-{}'", base64::encode(Sha256::digest(text)));
        let (styles, scripts, own) = (hash(&style), hash(&script), if self.connects { "'self'" } else { "'none'" });
        let sources = format!("style-src {styles}; script-src {scripts}; connect-src {own}; img-src data:");
        let policy = format!("default-src 'none'; {sources}; base-uri 'none'; form-action 'none'");
        let [heat, legend] = [include_str!("heat.html"), include_str!("legend.html")].map(markup);
        let body = filled(self.body, context! { title => self.title, heat, legend, ..data });
        let frame = context! {
            title => self.title,
            policy => markup(policy.as_str()),
            style => markup(style),
            body => markup(body),
            head => markup(script_safe(&self.head.to_string())),
            script => markup(script),
        };
        (filled(include_str!("frame.html"), frame) + "\n", policy)
    }
}

/// Content of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub title: String,
    /// The opening summary.
    pub findings: Vec<Finding>,
    /// One per model and task.
    pub runs: Vec<Items>,
    pub tables: Vec<Table>,
    pub galleries: Vec<Gallery>,
    /// The scores by which items can be filtered and sorted; the first is preselected.
    pub methods: Vec<Method>,
}

impl Page {
    /// The whole file; the same input produces the same bytes.
    pub fn render(&self) -> String {
        let items: Vec<String> = self.runs.iter().map(Items::json).collect();
        let run = |run: &Items| json!({"model": visible(&run.model), "task": visible(&run.task)});
        let method = |method: &Method| json!([visible(&method.key), visible(&method.name), method.meaning]);
        let methods: Vec<_> = self.methods.iter().map(method).collect();
        let document = Document {
            title: &self.title,
            body: include_str!("page.html"),
            style: &theme::style_sheet(),
            script: concat!(include_str!("tex.js"), include_str!("items.js")),
            connects: false,
            head: json!({
                "methods": methods,
                "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            }),
        };
        let data = context! {
            findings => Value::from(Serde(&self.findings)),
            tables => Value::from(Serde(&self.tables)),
            scores => Value::from(Serde(&methods)),
            heads => heads().map(|[name, _, meaning]| [name, meaning].into_iter().collect()).collect::<Vec<Value>>(),
            open_tables => OPEN_TABLES,
            galleries => self.galleries.iter().map(gallery).collect::<Vec<Value>>(),
            left_out => self.runs.iter().map(|run| run.left_out).sum::<usize>(),
            items => markup(items.join(",\n")),
        };
        document.render(data).0
    }
}

fn gallery(gallery: &Gallery) -> Value {
    let pictures: Vec<Value> = gallery.pictures.iter().map(Picture::inline).map(markup).collect();
    context! { heading => gallery.heading.as_str(), folded => gallery.folded, pictures }
}

/// Markup that the template writes unescaped.
fn markup(text: impl Into<String>) -> Value {
    Value::from_safe_string(text.into())
}

/// A table's text, with hyphens before digits replaced by minus signs.
fn with_minus(text: &str) -> String {
    pattern!(r"(^|[ \[(])-([0-9])").replace_all(text, "$1−$2").into_owned()
}

/// Meaning of a column's header, for a tooltip, and an arrow in the direction of better values.
fn head(name: &str) -> Value {
    let (arrow, meaning) = meaning(name).unwrap_or_default();
    context! { arrow, meaning }
}

/// Fills one of this program's templates. Text other than [`markup`] is escaped, and characters that a terminal or page
/// would interpret are made visible.
pub(super) fn filled(template: &str, data: Value) -> String {
    let mut environment = Environment::new();
    environment.add_filter("with_minus", with_minus);
    environment.add_filter("head", head);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => Ok(out.write_str(&escape(text))?),
        _ => escape_formatter(out, state, value),
    });
    environment.render_str(template, data).expect("no error of these templates depends on the data")
}
