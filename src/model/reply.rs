//! The two parts of a response: the thought, and the reply to the user.
//!
//! Reasoning models write their thought between markers, which `thoughts.txt` lists. A chat template may write the opening marker
//! itself, as the end of the prompt. Nothing after this module looks for an answer in a thought.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fmt, ops::Range, str::FromStr, sync::LazyLock};

/// The known formats for a command's help, one per line.
pub fn help() -> String {
    let lines = formats().filter(|row| row.len() > 1).map(|row| format!("  {}", row.join("  ")));
    lines.collect::<Vec<_>>().join("\n")
}

/// The rows of a table: the columns, separated by tabs, of lines that are not blank and no comments.
pub(crate) fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// The rows of `thoughts.txt`: marks that begin and end a thought, and whose they are; and marks around messages.
fn formats() -> impl Iterator<Item = Vec<&'static str>> {
    rows(include_str!("thoughts.txt"))
}

/// What closes a harmony thought when it is written for the model, which ends one message and begins the next.
const HARMONY_CLOSE: (&str, &str) = ("<|channel|>final", "<|end|><|start|>assistant<|channel|>final<|message|>");

const HARMONY_OPEN: &str = "<|channel|>analysis<|message|>";

/// Which markers count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Thinking {
    /// Those of `thoughts.txt`.
    #[default]
    Auto,
    /// None: all of a response is its reply.
    None,
    /// These two.
    Tags { open: String, close: String },
}

impl Thinking {
    pub fn is_auto(&self) -> bool {
        *self == Thinking::Auto
    }
}

impl fmt::Display for Thinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thinking::Auto => f.write_str("auto"),
            Thinking::None => f.write_str("none"),
            Thinking::Tags { open, close } => write!(f, "{open},{close}"),
        }
    }
}

impl From<Thinking> for String {
    fn from(thinking: Thinking) -> String {
        thinking.to_string()
    }
}

impl FromStr for Thinking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(',').map(|(open, close)| (open.trim(), close.trim()))) {
            ("auto", _) => Ok(Thinking::Auto),
            ("none", _) => Ok(Thinking::None),
            (_, Some((open, close))) if !open.is_empty() && !close.is_empty() && open != close => {
                Ok(Thinking::Tags { open: open.to_owned(), close: close.to_owned() })
            }
            _ => Err(format!("expected auto, none or OPEN,CLOSE such as <think>,</think>, found \"{text}\"")),
        }
    }
}

impl TryFrom<String> for Thinking {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A response, split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The thoughts, with their markers, as bytes of the response.
    pub thought: Vec<Range<usize>>,
    /// What would close the last thought, if it is open: the response ends inside it, and has no reply.
    pub open: Option<String>,
    /// Where the reply starts in the response.
    pub start: usize,
    /// The reply. A later thought, and the marks around messages, are newlines, so that a byte of it is `start` before that of
    /// the response.
    pub text: String,
}

impl Reply {
    /// Whether the response ends inside a thought.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

/// What a marker does.
#[derive(Clone, Copy, PartialEq)]
enum Kind<'m> {
    /// Begins a thought that this closes.
    Open(&'m str),
    Close(&'m str),
    Frame,
    /// As a frame; what follows is not of the reply.
    End,
}

impl Thinking {
    /// Splits a response; `prompt` is the end of the text before it, which may open the thought.
    pub fn split(&self, prompt: &str, response: &str) -> Reply {
        let mut thought: Vec<Range<usize>> = Vec::new();
        let mut hidden = Vec::new();
        let mut open = self.left_open(prompt).map(|close| (0, close));
        let mut end = 0; // of what is no reply
        for (marker, kind) in self.markers(response) {
            let before = end;
            end = marker.end;
            match (kind, open) {
                (Kind::Open(close), None) => open = Some((marker.start, close)),
                (Kind::Close(close), Some((start, awaited))) if close == awaited => {
                    thought.push(start..marker.end);
                    open = None;
                }
                // the prompt, or whoever recorded the response, has the beginning
                (Kind::Close(_), None) => thought = std::iter::once(0..marker.end).collect(),
                (Kind::End, None) if !response[before..marker.start].trim().is_empty() => {
                    hidden.push(marker.start..response.len());
                    break;
                }
                (Kind::Frame | Kind::End, None) => hidden.push(marker),
                _ => {}
            }
        }
        let written =
            |close: &str| if close == HARMONY_CLOSE.0 { HARMONY_CLOSE.1.to_owned() } else { close.to_owned() };
        if let Some((start, close)) = open {
            thought.push(start..response.len());
            return Reply { thought, open: Some(written(close)), start: response.len(), text: String::new() };
        }
        hidden.extend(thought.iter().cloned());
        hidden.sort_by_key(|range| range.start);
        let mut start = 0;
        let mut text = response.to_owned();
        for range in hidden {
            if response[start..range.start.max(start)].trim().is_empty() {
                start = range.end.max(start);
            }
            text.replace_range(range.clone(), &"\n".repeat(range.len()));
        }
        Reply { thought, open: None, start, text: text.split_off(start) }
    }

    /// A thought and a reply as a model with this chat template would write them after `prompt`; without a reply the thought stays
    /// open.
    pub fn join(&self, prompt: &str, template: &str, thought: &str, reply: &str) -> String {
        let used = formats().find(|row| row.get(1).is_some_and(|close| template.contains(close)));
        let (open, close) = match (self, used.as_deref()) {
            (Thinking::Tags { open, close }, _) => (open.as_str(), close.as_str()),
            (_, Some([_, close, ..])) if *close == HARMONY_CLOSE.0 => (HARMONY_OPEN, HARMONY_CLOSE.1),
            (_, Some([open, close, ..])) => (open.trim_start_matches('^'), *close),
            _ => ("<think>", "</think>"),
        };
        let opened = self.left_open(prompt).is_some();
        let thought = if opened { thought.to_owned() } else { format!("{open}\n{thought}") };
        if reply.is_empty() { thought } else { format!("{thought}\n{close}\n\n{reply}") }
    }

    /// Whether a text, such as a chat template, has a marker of a thought.
    pub fn is_in(&self, text: &str) -> bool {
        self.markers(text).iter().any(|(_, kind)| !matches!(kind, Kind::Frame | Kind::End))
    }

    /// Whether a token is what marks a thought, or begins it.
    pub fn marks(&self, token: &str) -> bool {
        let is_mark = |open: &str, close: &str| open.starts_with(token) || close.starts_with(token);
        match self {
            Thinking::Auto => formats().any(|row| matches!(row[..], [open, close, ..] if is_mark(open, close))),
            Thinking::None => false,
            Thinking::Tags { open, close } => is_mark(open, close),
        }
    }

    /// What closes the thought that a prompt ends with the beginning of.
    fn left_open(&self, prompt: &str) -> Option<&str> {
        let mut open = None;
        let mut end = 0;
        for (marker, kind) in self.markers(prompt) {
            open = match kind {
                Kind::Open(close) => Some(close),
                Kind::Frame | Kind::End if prompt[end..marker.start].trim().is_empty() => open,
                _ => None,
            };
            end = marker.end;
        }
        open.filter(|_| prompt[end..].trim().is_empty())
    }

    /// The markers of a text, in order, without those in quotes: "the tag `</think>`".
    fn markers<'m>(&'m self, text: &str) -> Vec<(Range<usize>, Kind<'m>)> {
        static AUTO: LazyLock<Option<Markers<'static>>> = LazyLock::new(|| Markers::new(formats()));
        let own;
        let markers = match self {
            Thinking::Auto => &*AUTO,
            Thinking::None => &None,
            Thinking::Tags { open, close } => {
                own = Markers::new(std::iter::once(vec![open.as_str(), close]));
                &own
            }
        };
        let Some(Markers { regex, kinds }) = markers else { return Vec::new() };
        let marker = |found: regex::Match| {
            let before = text[..found.start()].chars().next_back().filter(|c| matches!(c, '`' | '"' | '\''));
            let quoted = before.is_some() && before == text[found.end()..].chars().next();
            Some((found.range(), *kinds.get(&key(found.as_str())).filter(|_| !quoted)?))
        };
        regex.find_iter(text).filter_map(marker).collect()
    }
}

/// A pattern of markers, and what each does, by [`key`].
struct Markers<'m> {
    regex: Regex,
    kinds: HashMap<String, Kind<'m>>,
}

impl<'m> Markers<'m> {
    /// `None` if a marker is too long for a pattern.
    fn new(rows: impl Iterator<Item = Vec<&'m str>>) -> Option<Self> {
        let (mut patterns, mut kinds) = (Vec::new(), HashMap::new());
        for row in rows {
            let close = row.get(1).copied();
            let Some(open) = row.first() else { continue };
            let frame = if open.starts_with('$') { Kind::End } else { Kind::Frame };
            let opens = (open.trim_start_matches('$'), close.map_or(frame, Kind::Open));
            for (marker, kind) in std::iter::once(opens).chain(close.map(|close| (close, Kind::Close(close)))) {
                patterns.push(pattern(marker));
                kinds.insert(key(marker.trim_start_matches('^')), kind);
            }
        }
        let regex = RegexBuilder::new(&patterns.join("|")).case_insensitive(true).build().ok()?;
        Some(Markers { regex, kinds })
    }
}

/// A marker without what does not matter in it.
fn key(marker: &str) -> String {
    marker.split_whitespace().collect::<String>().to_lowercase()
}

/// The pattern of a marker as it may be written.
fn pattern(marker: &str) -> String {
    let (anchor, marker) = marker.strip_prefix('^').map_or(("", marker), |rest| (r"\A\s*", rest));
    let words = regex::escape(marker).split_whitespace().collect::<Vec<_>>().join(r"\s+");
    // a word without a mark is one only if text follows without a space
    let glued = if !anchor.is_empty() && marker.chars().all(char::is_alphabetic) { r"\B" } else { "" };
    let spaced = ["\\|>", "\\]", ">"].iter().find_map(|last| Some((words.strip_suffix(last)?, *last)));
    spaced.map_or_else(|| format!("{anchor}{words}{glued}"), |(tag, last)| format!(r"{anchor}{tag}\s*{last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reply, `None` inside an open thought.
    fn reply(thinking: &str, prompt: &str, response: &str) -> Option<String> {
        let split = thinking.parse::<Thinking>().unwrap().split(prompt, response);
        assert_eq!(split.text.len(), response.len() - split.start, "{response}");
        assert!(split.thought.iter().all(|range| range.end <= response.len()), "{response}");
        (!split.is_open()).then(|| split.text.trim().to_owned())
    }

    #[test]
    fn tokens_that_mark_a_thought() {
        let tags: Thinking = "<a>,</a>".parse().unwrap();
        for (token, auto, own) in [
            ("[THINK]", true, false),
            ("<|channel>", true, false),
            ("</think>", true, false),
            ("</a>", false, true),
            ("<|im_end|>", false, false),
            ("K", false, false),
        ] {
            assert_eq!((Thinking::Auto.marks(token), tags.marks(token)), (auto, own), "{token}");
            assert!(!Thinking::None.marks(token));
        }
    }

    #[test]
    fn every_format_is_split() {
        for row in formats().filter(|row| row.len() == 3) {
            let [open, close, whose] = [0, 1, 2].map(|column| row[column]);
            let (anchored, open) = (open.starts_with('^'), open.trim_start_matches('^'));
            assert_eq!(reply("auto", "", &format!("{open}7? No.{close}\n4")).as_deref(), Some("4"), "{whose}");
            assert_eq!(reply("auto", "", &format!("7? No.{close}\n4")).as_deref(), Some("4"), "{whose}: no opening");
            assert_eq!(reply("auto", "", &format!("{open}7? No.")), None, "{whose}: open");
            let prompt = format!("<|user|>Hi<|assistant|>{open}\n");
            assert_eq!(reply("auto", &prompt, "7? No.").is_some(), anchored, "{whose}: open in the prompt");
            assert_eq!(reply("none", "", &format!("{open}7? No.{close}\n4")), Some(format!("{open}7? No.{close}\n4")));
        }
    }

    #[test]
    fn odd_responses_are_split() {
        let cases = [
            ("", "4", Some("4")),
            ("<think>\n\n</think>\n\n", "4", Some("4")),
            ("Use <think> tags.<|assistant|>", "4", Some("4")),
            ("<|start|>assistant<|channel|>analysis<|message|>", "7", None),
            ("<think>\n", "7 or 8</think>4", Some("4")),
            (
                "",
                "<think>a</think>\\boxed{4}<think>b</think>\nyes",
                Some("\\boxed{4}\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\nyes"),
            ),
            ("", "</think></think>\n\n4", Some("4")),
            ("", "<THINK>7</think >4", Some("4")),
            ("", "<think>write </think> at the end: 7\n</think>4", Some("4")),
            ("", "Close with `</think>`: 4", Some("Close with `</think>`: 4")),
            ("", "<think>7<reflection>8</reflection>9</think>4", Some("4")),
            ("", "<think>the <reflection>", None),
            ("", "analysisWe get 7.assistantfinal4", Some("4")),
            ("", "analysis of 4 samples", Some("analysis of 4 samples")),
            ("", "<unused94>thought\n7<unused95>4", Some("4")),
            ("", "<unused94>thought\n7", None),
            ("", "4<|im_end|>\n<|im_start|>user\n5?", Some("4")),
            ("", "<think>7</think><|im_end|>\n<|im_start|>assistant\n4", Some("4")),
            (
                "",
                "<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>analysis<|message|>The answer is 8",
                None,
            ),
            (
                "",
                "<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
                Some("4"),
            ),
            ("", "<|channel|>commentary to=f<|message|>7<|eom|><|channel|>analysis<|message|>8", None),
        ];
        for (prompt, response, expected) in cases {
            assert_eq!(reply("auto", prompt, response).as_deref(), expected, "{prompt} {response}");
        }
        assert_eq!(reply("<a>,<b>", "", "<a>7<b>4").as_deref(), Some("4"));
        assert_eq!(reply("<a>,<b>", "<a>", "7"), None);
        assert_eq!(reply("<a>,<b>", "", "<think>7</think>4").as_deref(), Some("<think>7</think>4"));
        assert!("<a>".parse::<Thinking>().is_err() && "<a>,<a>".parse::<Thinking>().is_err());
    }

    #[test]
    fn what_closes_a_thought_is_known() {
        let close = |response| Thinking::Auto.split("", response).open;
        assert_eq!(close("<think>7").as_deref(), Some("</think>"));
        assert_eq!(close("<|channel|>analysis<|message|>7").as_deref(), Some(HARMONY_CLOSE.1));
        assert_eq!(close("7"), None);
    }
}
