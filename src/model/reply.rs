//! The two parts of a response: the thought, and the reply to the user.
//!
//! Reasoning models write their thought between markers, which [`FORMATS`] lists. A chat template may write the opening marker
//! itself, as the end of the prompt. Nothing after this module looks for an answer in a thought.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::LazyLock;

/// How models mark a thought. Case, and spaces before a tag's last bracket, do not matter.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Begins a thought; with `^`, only at the start of a response.
    pub open: &'static str,
    /// Ends it.
    pub close: &'static str,
    pub whose: &'static str,
}

const fn format(open: &'static str, close: &'static str, whose: &'static str) -> Format {
    Format { open, close, whose }
}

/// The known formats. Those without special tokens of the vocabulary also serve prompts that ask for such tags.
pub const FORMATS: &[Format] = &[
    format("<think>", "</think>", "DeepSeek-R1, Qwen 3, QwQ, GLM 4.5, Phi 4, SmolLM 3, Olmo 3, Granite 3.3, Nemotron"),
    format("[THINK]", "[/THINK]", "Magistral, Ministral 3"),
    format("<|channel|>analysis", "<|channel|>final", "gpt-oss (harmony)"),
    format("<|channel|>commentary", "<|channel|>final", "gpt-oss (harmony), between tool calls"),
    format("^analysis", "assistantfinal", "gpt-oss, its special tokens left out"),
    format("<|channel>thought", "<channel|>", "Gemma 4"),
    format("^Here is my thought process:", "Here is my response:", "Granite 3.2"),
    format("^Here's my thought process:", "Here's my response:", "Granite 3.2"),
    format("<|begin_of_thought|>", "<|end_of_thought|>", "Sky-T1, OpenThinker"),
    format("<|START_THINKING|>", "<|END_THINKING|>", "Command A Reasoning, Command R7B"),
    format("<seed:think>", "</seed:think>", "Seed-OSS"),
    format("◁think▷", "◁/think▷", "Kimi-VL, Kimi K1.5"),
    format("<longcat_think>", "</longcat_think>", "LongCat"),
    format("<|inner_prefix|>", "<|inner_suffix|>", "Apertus"),
    format("<|thinking|>", "<|/thinking|>", "templates of fine-tuned models"),
    format("<|think|>", "<|/think|>", "templates of fine-tuned models"),
    format("[THINKING]", "[/THINKING]", "prompts"),
    format("<thinking>", "</thinking>", "Reflection, Claude's prompts"),
    format("<thought>", "</thought>", "EXAONE Deep, Marco-o1"),
    format("<thoughts>", "</thoughts>", "prompts"),
    format("<reasoning>", "</reasoning>", "Reka Flash 3, prompts of GRPO"),
    format("<reason>", "</reason>", "prompts"),
    format("<reflection>", "</reflection>", "Reflection"),
    format("<analysis>", "</analysis>", "prompts"),
    format("<scratchpad>", "</scratchpad>", "prompts"),
    format("<cot>", "</cot>", "prompts"),
    format("<inner_monologue>", "</inner_monologue>", "prompts"),
    format("^Thinking...", "...done thinking.", "Ollama's terminal"),
];

/// The known formats for a command's help, one per line.
pub fn help() -> String {
    let line = |format: &Format| format!("  {} ... {}  {}", format.open, format.close, format.whose);
    FORMATS.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Marks around messages and replies that are part of neither.
const FRAMES: &[&str] = &[
    "<|start|>assistant",
    "<|message|>",
    "<|end|>",
    "<|eom|>",
    "<|return|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|begin_of_solution|>",
    "<|end_of_solution|>",
    "<response>",
    "</response>",
    "<output>",
    "</output>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<turn|>",
    "</s>",
];

/// What closes a harmony thought when it is written for the model, which ends one message and begins the next.
const HARMONY_CLOSE: (&str, &str) = ("<|channel|>final", "<|end|><|start|>assistant<|channel|>final<|message|>");

const HARMONY_OPEN: &str = "<|channel|>analysis<|message|>";

/// Which markers count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Thinking {
    /// Those of [`FORMATS`].
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
}

impl Thinking {
    /// Splits a response; `prompt` is the end of the text before it, which may open the thought.
    pub fn split(&self, prompt: &str, response: &str) -> Reply {
        let mut thought: Vec<Range<usize>> = Vec::new();
        let mut hidden = Vec::new();
        let mut open = self.left_open(prompt).map(|close| (0, close));
        for (marker, kind) in self.markers(response) {
            match (kind, open) {
                (Kind::Open(close), None) => open = Some((marker.start, close)),
                (Kind::Close(close), Some((start, awaited))) if close == awaited => {
                    thought.push(start..marker.end);
                    open = None;
                }
                // the prompt, or whoever recorded the response, has the beginning
                (Kind::Close(_), None) => thought = std::iter::once(0..marker.end).collect(),
                (Kind::Frame, None) => hidden.push(marker),
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
        let used = FORMATS.iter().find(|format| template.contains(format.close)).unwrap_or(&FORMATS[0]);
        let (open, close) = match self {
            Thinking::Tags { open, close } => (open.as_str(), close.as_str()),
            _ if used.close == HARMONY_CLOSE.0 => (HARMONY_OPEN, HARMONY_CLOSE.1),
            _ => (used.open.trim_start_matches('^'), used.close),
        };
        let opened = self.left_open(prompt).is_some();
        let thought = if opened { thought.to_owned() } else { format!("{open}\n{thought}") };
        if reply.is_empty() { thought } else { format!("{thought}\n{close}\n\n{reply}") }
    }

    /// Whether a text, such as a chat template, has a marker of a thought.
    pub fn is_in(&self, text: &str) -> bool {
        self.markers(text).any(|(_, kind)| kind != Kind::Frame)
    }

    /// What closes the thought that a prompt ends with the beginning of.
    fn left_open(&self, prompt: &str) -> Option<&str> {
        let mut open = None;
        let mut end = 0;
        for (marker, kind) in self.markers(prompt) {
            open = match kind {
                Kind::Open(close) => Some(close),
                Kind::Frame if prompt[end..marker.start].trim().is_empty() => open,
                _ => None,
            };
            end = marker.end;
        }
        open.filter(|_| prompt[end..].trim().is_empty())
    }

    /// The markers of a text, in order, without those in quotes: "the tag `</think>`".
    fn markers<'m>(&'m self, text: &str) -> impl Iterator<Item = (Range<usize>, Kind<'m>)> {
        static AUTO: LazyLock<Regex> = LazyLock::new(|| {
            let formats = FORMATS.iter().flat_map(|format| [format.open, format.close]);
            one_of(formats.chain(FRAMES.iter().copied())).expect("constant markers")
        });
        let regex = match self {
            Thinking::Auto => Some(AUTO.clone()),
            Thinking::None => None,
            Thinking::Tags { open, close } => one_of([open.as_str(), close]),
        };
        let ranges = regex.map_or_else(Vec::new, |regex| regex.find_iter(text).map(|found| found.range()).collect());
        ranges.into_iter().filter_map(move |range| {
            let before = text[..range.start].chars().next_back().filter(|c| matches!(c, '`' | '"' | '\''));
            let quoted = before.is_some() && before == text[range.end..].chars().next();
            self.kind(&text[range.clone()]).filter(|_| !quoted).map(|kind| (range, kind))
        })
    }

    /// What a marker, as written, does.
    fn kind(&self, written: &str) -> Option<Kind<'_>> {
        let key = |text: &str| text.split_whitespace().collect::<String>().to_lowercase();
        let written = key(written);
        let is = |marker: &str| key(marker.trim_start_matches('^')) == written;
        match self {
            Thinking::Auto => {
                let opens = FORMATS.iter().find(|format| is(format.open)).map(|format| Kind::Open(format.close));
                let closes = || FORMATS.iter().find(|format| is(format.close)).map(|format| Kind::Close(format.close));
                opens.or_else(closes).or(Some(Kind::Frame))
            }
            Thinking::None => None,
            Thinking::Tags { open, close } => Some(if is(open) { Kind::Open(close) } else { Kind::Close(close) }),
        }
    }
}

/// A pattern of any of these markers; `None` if they are too long for one.
fn one_of<'m>(markers: impl IntoIterator<Item = &'m str>) -> Option<Regex> {
    let pattern = |marker: &str| {
        let (anchor, marker) = marker.strip_prefix('^').map_or(("", marker), |rest| (r"\A\s*", rest));
        let words = regex::escape(marker).split_whitespace().collect::<Vec<_>>().join(r"\s+");
        // a word without a mark is one only if text follows without a space
        let glued = if !anchor.is_empty() && marker.chars().all(char::is_alphabetic) { r"\B" } else { "" };
        let spaced = ["\\|>", "\\]", ">"].iter().find_map(|last| Some((words.strip_suffix(last)?, *last)));
        spaced.map_or_else(|| format!("{anchor}{words}{glued}"), |(tag, last)| format!(r"{anchor}{tag}\s*{last}"))
    };
    let all: Vec<String> = markers.into_iter().map(pattern).collect();
    RegexBuilder::new(&all.join("|")).case_insensitive(true).build().ok()
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
    fn every_format_is_split() {
        for Format { open, close, whose } in FORMATS {
            let open = open.trim_start_matches('^');
            assert_eq!(reply("auto", "", &format!("{open}7? No.{close}\n4")).as_deref(), Some("4"), "{whose}");
            assert_eq!(reply("auto", "", &format!("7? No.{close}\n4")).as_deref(), Some("4"), "{whose}: no opening");
            assert_eq!(reply("auto", "", &format!("{open}7? No.")), None, "{whose}: open");
            assert_eq!(
                reply("auto", &format!("<|user|>Hi<|assistant|>{open}\n"), "7? No."),
                None,
                "{whose}: open in the prompt"
            );
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
