//! `tokenizer.json`, checked before it is passed to the library, which takes lengths and patterns as they come: some of a
//! few kilobytes would make it exhaust memory or never terminate.

use fancy_regex::Expr;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer, TokenizerImpl,
};

/// Max bytes of all added tokens; published models have up to some 4 million.
const MAX_ADDED: usize = 8 << 20;
/// Max bytes of one added token, and of one in a vocabulary that becomes a tree.
const MAX_TOKEN: usize = 1024;
/// Max items of a list, and bytes of a text, in the parts around the model.
const MAX_ITEMS: usize = 1000;
const MAX_TEXT: usize = 1000;
const MAX_PATTERN: usize = 10_000;
/// Max parts of a pattern with its repetitions expanded.
const MAX_PATTERN_PARTS: usize = 20_000;
/// Max growth of a text.
const MAX_GROWTH: usize = 1000;

#[derive(Deserialize)]
struct File<M> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: M,
}

/// The tokenizer of a file, without its truncation and padding. Almost all are BPE and are read as such directly: a model
/// of any kind goes through a tree of the whole vocabulary, which takes longer than the rest of the program's startup.
///
/// # Errors
/// A file that is not a tokenizer, or would take more resources than any tokenizer should.
pub(super) fn read(json: &[u8]) -> Result<Tokenizer, String> {
    match serde_json::from_slice::<File<BPE>>(json) {
        Ok(file) => build(file, Into::into),
        Err(_) => {
            let mut file: File<Value> = serde_json::from_slice(json).map_err(|e| e.to_string())?;
            check_vocabulary(&file.model)?;
            let model = ModelWrapper::deserialize(file.model.take()).map_err(|e| format!("model: {e}"))?;
            build(file, |_| model)
        }
    }
}

fn build<M>(file: File<M>, model: impl FnOnce(M) -> ModelWrapper) -> Result<Tokenizer, String> {
    if let Some(version) = file.version.filter(|version| version != "1.0") {
        return Err(format!("version {version:?}, expected \"1.0\""));
    }
    type Parts =
        TokenizerImpl<ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    let mut tokenizer = Parts::new(model(file.model));
    tokenizer
        .with_normalizer(part::<NormalizerWrapper>("normalizer", file.normalizer)?)
        .map_err(|e| format!("normalizer: {e}"))?
        .with_pre_tokenizer(part::<PreTokenizerWrapper>("pre_tokenizer", file.pre_tokenizer)?)
        .with_post_processor(part::<PostProcessorWrapper>("post_processor", file.post_processor)?)
        .with_decoder(part::<DecoderWrapper>("decoder", file.decoder)?);
    let mut tokenizer = Tokenizer::from(tokenizer);
    add_tokens(&mut tokenizer, file.added_tokens)?;
    Ok(tokenizer)
}

/// Adds all of these in one call: after each call the library rebuilds its table of all added tokens.
pub(super) fn add_tokens(tokenizer: &mut Tokenizer, tokens: Vec<AddedToken>) -> Result<(), String> {
    if let Some(token) = tokens.iter().find(|token| token.content.len() > MAX_TOKEN) {
        let (begins, n) = (token.content.chars().take(20).collect::<String>(), token.content.len());
        return Err(format!("the added token {begins:?}... has {n} bytes, expected at most {MAX_TOKEN}"));
    }
    let total: usize = tokens.iter().map(|token| token.content.len()).sum();
    if total > MAX_ADDED {
        return Err(format!("the added tokens have {total} bytes in all, expected at most {MAX_ADDED}"));
    }
    tokenizer.add_tokens(tokens).map_err(|e| format!("added tokens: {e}"))?;
    Ok(())
}

/// A vocabulary of texts, or of texts and scores: the latter become a tree with one level per byte.
fn check_vocabulary(model: &Value) -> Result<(), String> {
    let tokens = model.get("vocab").and_then(Value::as_array).into_iter().flatten();
    let longest = tokens.filter_map(|entry| entry.get(0)?.as_str()).map(str::len).max().unwrap_or(0);
    if longest > MAX_TOKEN {
        return Err(format!("model: a token of {longest} bytes, expected at most {MAX_TOKEN}"));
    }
    Ok(())
}

/// One of the parts around the model.
fn part<T: for<'de> Deserialize<'de>>(name: &str, value: Option<Value>) -> Result<Option<T>, String> {
    let Some(value) = value else { return Ok(None) };
    let wrong = |e: String| format!("{name}: {e}");
    let mut growth = 1;
    check(&value, &mut growth).map_err(wrong)?;
    if growth > MAX_GROWTH {
        return Err(wrong(format!("makes a text up to {growth} times longer, expected at most {MAX_GROWTH}")));
    }
    T::deserialize(value).map(Some).map_err(|e| wrong(e.to_string()))
}

/// Checks a part; `growth` is multiplied by the max bytes that each step may produce from one.
fn check(value: &Value, growth: &mut usize) -> Result<(), String> {
    match value {
        Value::String(text) if text.len() > MAX_TEXT => {
            Err(format!("a text of {} bytes, expected at most {MAX_TEXT}", text.len()))
        }
        Value::Array(items) if items.len() > MAX_ITEMS => {
            Err(format!("a list of {} items, expected at most {MAX_ITEMS}", items.len()))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check(item, growth)),
        Value::Object(fields) => {
            *growth = growth.saturating_mul(growth_of(value));
            check_template(value)?;
            fields.iter().try_for_each(|(name, field)| match (name.as_str(), field) {
                ("precompiled_charsmap", Value::String(text)) => {
                    let longest = check_charsmap(text)?;
                    *growth = growth.saturating_mul(longest.max(1));
                    Ok(())
                }
                ("Regex", Value::String(pattern)) => check_pattern(pattern),
                _ => check(field, growth),
            })
        }
        _ => Ok(()),
    }
}

/// Max bytes that a step produces from one.
fn growth_of(step: &Value) -> usize {
    let content = step.get("content").and_then(Value::as_str).map_or(0, str::len);
    let pattern = step.get("pattern");
    let pattern = |kind: &str| pattern.and_then(|pattern| pattern.get(kind)?.as_str());
    match (step.get("type").and_then(Value::as_str), pattern("String"), pattern("Regex")) {
        (Some("ByteLevel"), ..) => 2,
        (Some("Replace"), Some(pattern), _) => {
            content.div_ceil(pattern.len().max(1)).max(1) + usize::from(pattern.is_empty())
        }
        // a pattern that matches the empty string adds to each character
        (Some("Replace"), _, Some(pattern)) => {
            let adds = !regex::Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(""));
            content.max(1) + usize::from(adds && content > 0)
        }
        _ => 1,
    }
}

/// A post-processor's template: what it puts around a text.
fn check_template(step: &Value) -> Result<(), String> {
    let pieces = ["single", "pair"].iter().filter_map(|name| step.get(name)?.as_array()).map(Vec::len).sum::<usize>();
    let tokens = step.get("special_tokens").and_then(Value::as_object).into_iter().flatten();
    let ids = tokens.filter_map(|(_, token)| token.get("ids")?.as_array()).map(Vec::len).max().unwrap_or(0);
    if pieces * ids > MAX_ITEMS {
        return Err(format!(
            "a template of {pieces} pieces of up to {ids} tokens, expected at most {MAX_ITEMS} in all"
        ));
    }
    Ok(())
}

/// A SentencePiece charsmap, in base64: the size of a trie, the trie, and zero-terminated texts. Returns the length of
/// the longest text.
fn check_charsmap(text: &str) -> Result<usize, String> {
    let bytes = base64::decode(text).map_err(|_| "precompiled_charsmap: not base64")?;
    let (size, rest) = bytes.split_first_chunk::<4>().ok_or("precompiled_charsmap: too short")?;
    let size = u32::from_le_bytes(*size) as usize;
    let texts = rest
        .get(size / 4 * 4..)
        .ok_or_else(|| format!("precompiled_charsmap: a trie of {size} bytes, but only {} are there", rest.len()))?;
    Ok(texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

/// Rejects patterns that are huge when expanded or take time exponential in the text: a repetition within a repetition,
/// if the pattern needs backtracking.
fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("a pattern of {} bytes, expected at most {MAX_PATTERN}", pattern.len()));
    }
    let Ok(tree) = Expr::parse_tree(pattern) else { return Ok(()) }; // the library reports the error
    let found = cost(&tree.expr);
    if found.parts > MAX_PATTERN_PARTS {
        return Err(format!("the pattern {pattern:.80?} is too large when its repetitions are written out"));
    }
    if found.backtracks && found.nested {
        return Err(format!("the pattern {pattern:.80?} repeats a repetition, which may take time without end"));
    }
    Ok(())
}

/// What matching a part of a pattern may cost.
#[derive(Default)]
struct Cost {
    /// Parts with repetitions expanded.
    parts: usize,
    /// Something repeats without a limit; and within such a repetition something else does, too.
    repeats: bool,
    nested: bool,
    /// Finite automata cannot match it.
    backtracks: bool,
}

fn cost(part: &Expr) -> Cost {
    let (inner, backtracks): (Vec<&Expr>, bool) = match part {
        Expr::Empty | Expr::Any { .. } | Expr::Assertion(_) | Expr::Literal { .. } | Expr::Delegate { .. } => {
            (vec![], false)
        }
        Expr::Concat(inner) | Expr::Alt(inner) => (inner.iter().collect(), false),
        Expr::Group(inner) | Expr::Repeat { child: inner, .. } => (vec![inner], false),
        Expr::LookAround(inner, _) | Expr::AtomicGroup(inner) => (vec![inner], true),
        Expr::Conditional { condition, true_branch, false_branch } => {
            (vec![condition, true_branch, false_branch], true)
        }
        _ => (vec![], true),
    };
    let own = if let Expr::Literal { val, .. } = part { val.len() } else { 1 };
    let mut cost = Cost { parts: own, backtracks, ..Cost::default() };
    for inner in inner.into_iter().map(self::cost) {
        cost.parts = cost.parts.saturating_add(inner.parts);
        cost.repeats |= inner.repeats;
        cost.nested |= inner.nested;
        cost.backtracks |= inner.backtracks;
    }
    if let Expr::Repeat { lo, hi, .. } = part {
        let unlimited = *hi == usize::MAX;
        cost.nested |= unlimited && cost.repeats;
        cost.repeats |= unlimited;
        cost.parts = cost.parts.saturating_mul(if unlimited { *lo } else { *hi }.max(1));
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns like those of published tokenizers, and hostile ones.
    #[test]
    fn patterns() {
        for pattern in [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+$|\s+(?!\S)",
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
            r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
            r"(a+)+", // without backtracking it takes linear time
            " {2,}",
        ] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for pattern in [
            r"(?=((a{99}){99}){99})",
            r"((((a){1000}){1000}){1000}){1000}",
            r"(a+)+(?!b)",
            r"((?:a*b?)*)\1",
            r"(?>(x{2,})*)",
        ] {
            assert!(check_pattern(pattern).is_err(), "{pattern}");
        }
        // nonsense is left for the library to reject
        for pattern in ["", "(", ")", "[", "{", "a{", "a{3", "\\", "[^", "a{,}", "a{x}"] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
    }
}
