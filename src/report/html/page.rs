//! The page around tables, pictures and items.

use super::data::{self, Items};
use crate::eval::analysis::{Method, Summary};
use crate::report::pictures::Gallery;
use crate::report::sanitize::visible;
use crate::report::svg::{Picture, escape, theme};
use serde_json::json;

const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 3] = [include_str!("items.js"), include_str!("view.js"), include_str!("arcs.js")];

/// One model on one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub model: String,
    pub task: String,
    pub summary: Summary,
    pub items: Items,
}

/// A table, its cells as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// What a reader has to know; may be empty.
    pub note: String,
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
    pub fn render(&self) -> String {
        let items: Vec<String> = self.runs.iter().map(|run| run.items.json()).collect();
        let left_out = self.runs.iter().map(|run| run.items.left_out()).sum();
        let names: Vec<_> =
            self.runs.iter().map(|run| json!({"model": visible(&run.model), "task": visible(&run.task)})).collect();
        let methods: Vec<_> =
            self.methods.iter().map(|method| json!([visible(&method.key), visible(&method.name)])).collect();
        let head = data::script_safe(&json!({"methods": methods, "runs": names}).to_string());
        [
            self.head(),
            self.overview(),
            self.tables(),
            self.galleries(),
            items_section(left_out),
            format!("<script type=\"application/json\" id=\"head\">{head}</script>\n"),
            format!("<script type=\"application/json\" id=\"items-data\">[{}]</script>\n", items.join(",\n")),
            format!("<script>\n\"use strict\";\n{}</script>\n</main></body></html>\n", SCRIPTS.concat()),
        ]
        .concat()
    }

    fn head(&self) -> String {
        let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; \
                      base-uri 'none'; form-action 'none'";
        let title = escape(&self.title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{}</style></head>\n<body>\n\
             <a class=\"skip\" href=\"#items\">Skip to the items</a>\n\
             <header><h1>{title}</h1>\n<nav aria-label=\"Sections\"><a href=\"#runs\">Runs</a> \
             <a href=\"#tables\">Tables</a> <a href=\"#pictures\">Pictures</a> <a href=\"#items\">Items</a></nav></header>\n\
             <main>\n",
            theme::style_sheet(),
        )
    }

    /// A row a run: how many items, and how they ended.
    fn overview(&self) -> String {
        let header =
            ["model", "task", "items", "accuracy [95 %]", "no answer", "truncated", "errors"].map(str::to_owned);
        let table =
            Table { header: header.to_vec(), rows: self.runs.iter().map(overview_row).collect(), ..Table::default() };
        format!("<section id=\"runs\"><h2>Runs</h2>\n{}</section>\n", table.html())
    }

    fn tables(&self) -> String {
        let tables: String = self.tables.iter().map(Table::html).collect();
        let tables = if tables.is_empty() { "<p class=\"note\">No tables.</p>\n".to_owned() } else { tables };
        format!("<section id=\"tables\"><h2>Tables</h2>\n{tables}</section>\n")
    }

    fn galleries(&self) -> String {
        let galleries: String = self.galleries.iter().map(Gallery::html).collect();
        let galleries =
            if galleries.is_empty() { "<p class=\"note\">No pictures.</p>\n".to_owned() } else { galleries };
        format!("<section id=\"pictures\"><h2>Pictures</h2>\n{galleries}</section>\n")
    }
}

fn overview_row(run: &Run) -> Vec<String> {
    let summary = &run.summary;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let counted = |part: usize| match part {
        0 => "0".to_owned(),
        part => format!("{part} ({})", percent(part as f64 / summary.items.max(part) as f64)),
    };
    let interval = summary.accuracy_interval.map(|[low, high]| format!(" [{:.1}, {:.1}]", 100.0 * low, 100.0 * high));
    vec![
        run.model.clone(),
        run.task.clone(),
        summary.items.to_string(),
        summary.accuracy.map_or("–".to_owned(), |share| percent(share) + &interval.unwrap_or_default()),
        counted(summary.no_answer),
        counted(summary.truncated),
        counted(summary.errors),
    ]
}

impl Table {
    /// In a box of its own, which scrolls where the page is narrow. Columns of numbers keep to the right.
    fn html(&self) -> String {
        let numeric = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.clone().next().is_some() && cells.clone().all(|cell| !cell.starts_with(char::is_alphabetic))
        };
        let class = |column: usize| if column > 0 && numeric(column) { " class=\"number\"" } else { "" };
        let head: String = self
            .header
            .iter()
            .enumerate()
            .map(|(i, name)| format!("<th scope=\"col\"{}>{}</th>", class(i), escape(name)))
            .collect();
        let cell = |(i, text): (usize, &String)| match i {
            0 => format!("<th scope=\"row\">{}</th>", escape(text)),
            i => format!("<td{}>{}</td>", class(i), escape(text)),
        };
        let row = |row: &Vec<String>| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>());
        let rows: String = self.rows.iter().map(row).collect();
        let caption = if self.caption.is_empty() {
            String::new()
        } else {
            format!("<caption>{}</caption>", escape(&self.caption))
        };
        let note = if self.note.is_empty() {
            String::new()
        } else {
            format!("<p class=\"note\">{}</p>\n", escape(&self.note))
        };
        let label = if self.caption.is_empty() { "table".into() } else { escape(&self.caption) };
        format!(
            "<div class=\"scroll\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\"><table>{caption}<thead><tr>{head}\
             </tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n{note}"
        )
    }
}

impl Gallery {
    fn html(&self) -> String {
        let figure = |picture: &Picture| format!("<figure>{}</figure>\n", picture.inline());
        let figures: String = self.pictures.iter().map(figure).collect();
        let (heading, figures) = (escape(&self.heading), format!("<div class=\"gallery\">\n{figures}</div>"));
        match self.folded {
            true => format!("<details class=\"more\"><summary>{heading}</summary>\n{figures}</details>\n"),
            false => format!("<h3>{heading}</h3>\n{figures}\n"),
        }
    }
}

/// The controls; the script fills in the methods and the items.
fn items_section(left_out: usize) -> String {
    let note = match left_out {
        0 => String::new(),
        n => format!(
            "<p class=\"note\" id=\"left-out\">{n} items are not here, because the page would be too large to open; \
             they are in the samples of their runs.</p>\n"
        ),
    };
    format!("<section id=\"items\"><h2>Items</h2>\n{note}{}</section>\n", include_str!("controls.html"))
}
