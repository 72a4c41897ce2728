//! XML elements, escaped.

use crate::report::term::sanitize::stand_in;
use std::borrow::Cow;

/// An element under construction.
#[derive(Clone, Debug)]
pub struct Element {
    tag: &'static str,
    attributes: String,
    content: String,
}

impl Element {
    /// An element without attributes or children.
    pub fn new(tag: &'static str) -> Element {
        Element { tag, attributes: String::new(), content: String::new() }
    }

    /// With an attribute; the value is escaped.
    pub fn attr(mut self, name: &str, value: &str) -> Element {
        self.attributes += &format!(" {name}=\"{}\"", escape(value));
        self
    }

    /// A coordinate or length, to a hundredth of a unit.
    pub fn num(self, name: &str, value: f64) -> Element {
        self.attr(name, &units(value))
    }

    /// Adds text.
    pub fn text(mut self, text: &str) -> Element {
        self.content += &escape(text);
        self
    }

    /// Adds what is XML already.
    pub fn content(mut self, xml: &str) -> Element {
        self.content += xml;
        self
    }

    /// The element and its children as XML.
    pub fn into_xml(self) -> String {
        let Element { tag, attributes, content } = self;
        if content.is_empty() {
            format!("<{tag}{attributes}/>")
        } else {
            format!("<{tag}{attributes}>{content}</{tag}>")
        }
    }
}

/// Text for an element or an attribute. Characters that XML does not allow, or that turn the reading direction, are
/// replaced by a stand-in.
pub fn escape(text: &str) -> Cow<'_, str> {
    let special =
        |c: char| matches!(c, '&' | '<' | '>' | '"' | '\'' | '\u{fffe}' | '\u{ffff}') || stand_in(c).is_some();
    if !text.contains(special) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'), // no characters in XML
            c => escaped.push(stand_in(c).unwrap_or(c)),
        }
    }
    Cow::Owned(escaped)
}

/// A length with at most two decimals. One that is not finite has no place in a picture; it becomes 0.
pub fn units(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let rounded = (value * 100.0).round() / 100.0;
    format!("{}", if rounded == 0.0 { 0.0 } else { rounded }) // no "-0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b>&\"'\u{0}\u{202e}\u{ffff}"), "a&lt;b&gt;&amp;&quot;&#39;␀\u{fffd}\u{fffd}");
        assert!(matches!(escape("plain é 家"), Cow::Borrowed(_)));
        let element = Element::new("text").attr("class", "\"x").text("1 < 2").into_xml();
        assert_eq!(element, "<text class=\"&quot;x\">1 &lt; 2</text>");
    }

    #[test]
    fn lengths_are_short() {
        let lengths = [1.0, 1.005, -0.001, 12.345678, f64::NAN, f64::INFINITY].map(units);
        assert_eq!(lengths, ["1", "1", "0", "12.35", "0", "0"]);
    }
}
