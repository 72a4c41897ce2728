//! The page around tables, pictures and items.

use super::data::{self, Items};
use crate::eval::analysis::Method;
use crate::report::pictures::Gallery;
use crate::report::svg::{Picture, escape, theme};
use crate::report::tables::{Align, Field, Section, Table};
use crate::report::term::sanitize::visible;
use serde_json::json;
use std::borrow::Cow;

/// So many tables are open from the start.
const OPEN_SHEETS: usize = 2;

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
             <header><h1>{title}</h1>\n<nav aria-label=\"Sections\">\
             <a href=\"#tables\">Tables</a> <a href=\"#pictures\">Pictures</a> <a href=\"#items\">Items</a></nav></header>\n\
             <main>\n",
            theme::style_sheet(),
        )
    }

    fn tables(&self) -> String {
        let tables: String =
            self.tables.iter().enumerate().map(|(i, table)| sheet_html(table, i < OPEN_SHEETS)).collect();
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

/// A table in a box of its own, which scrolls where the page is narrow.
fn sheet_html(table: &Table, open: bool) -> String {
    let class = |column: usize| match table.columns.get(column) {
        Some((_, Align::Right)) => " class=\"number\"",
        _ => "",
    };
    let head =
        |(i, (name, _)): (usize, &(Cow<str>, Align))| format!("<th scope=\"col\"{}>{}</th>", class(i), escape(name));
    let head: String = table.columns.iter().enumerate().map(head).collect();
    let cell = |(i, field): (usize, &Field)| {
        let text =
            if field.best { format!("<b>{}*</b>", escape(&field.text)) } else { escape(&field.text).into_owned() };
        if i == 0 { format!("<th scope=\"row\">{text}</th>") } else { format!("<td{}>{text}</td>", class(i)) }
    };
    let row = |row: &Vec<Field>| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>());
    let section = |section: &Section| {
        let label = section.label.as_deref().map(|label| {
            format!("<tr><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>\n", table.columns.len(), escape(label))
        });
        format!("<tbody>\n{}{}</tbody>", label.unwrap_or_default(), section.rows.iter().map(row).collect::<String>())
    };
    let sections: String = table.sections.iter().map(section).collect();
    let notes: String = table.notes.iter().map(|note| format!("<p class=\"note\">{}</p>\n", escape(note))).collect();
    let (title, open) = (escape(&table.title), if open { " open" } else { "" });
    format!(
        "<details class=\"more\"{open}><summary>{title}</summary>\n<div class=\"scroll\" role=\"region\" \
         aria-label=\"{title}\" tabindex=\"0\"><table><thead><tr>{head}</tr></thead>\n{sections}</table></div>\n\
         {notes}</details>\n"
    )
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
