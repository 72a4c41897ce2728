//! From the metadata's vocabulary to `tokenizer.json` and `tokenizer_config.json`.

use super::container::Container;
use super::{Fault, damaged};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Types of tokens that are matched before the text is split.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Pre-tokenizers of byte-level vocabularies by `tokenizer.ggml.pre`.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Ids of the tokens that end a response.
pub fn ends(container: &Container) -> Vec<u64> {
    let keys = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let mut ends: Vec<u64> = keys.iter().filter_map(|key| container.number(&format!("tokenizer.ggml.{key}"))).collect();
    ends.dedup();
    ends
}

fn token_text(container: &Container, key: &str) -> Option<String> {
    let id = container.number(&format!("tokenizer.ggml.{key}"))?;
    Some(container.list("tokenizer.ggml.tokens").get(id as usize)?.as_str()?.to_owned())
}

/// `tokenizer_config.json`
pub fn config(container: &Container) -> Value {
    json!({
        "bos_token": token_text(container, "bos_token_id"), "eos_token": token_text(container, "eos_token_id"),
        "chat_template": container.text("tokenizer.chat_template")
    })
}

/// `tokenizer.json`
pub fn tokenizer(container: &Container) -> Result<Value, Fault> {
    let tokens: Vec<&str> = container.list("tokenizer.ggml.tokens").iter().filter_map(Value::as_str).collect();
    let types = container.list("tokenizer.ggml.token_type");
    if tokens.is_empty() {
        return damaged("it has no tokenizer.ggml.tokens");
    }
    let vocabulary: Map<String, Value> =
        (0..).zip(&tokens).map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let flag = |key: &str, default: bool| {
        container.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(Value::as_bool).unwrap_or(default)
    };
    let kind = container.text("tokenizer.ggml.model").unwrap_or_default();
    let pre = container.text("tokenizer.ggml.pre").unwrap_or("default");
    let (mut json, adds_bos) = match kind {
        "gpt2" => (byte_level(container, pre)?, pre == "llama-bpe"),
        "llama" => (sentence_piece(container, &tokens, flag("add_space_prefix", true)), true),
        _ => return Err(Fault::Unsupported(format!("the tokenizer \"{kind}\""))),
    };
    let added = (0..).zip(&tokens).zip(types).filter_map(|((id, token), kind): ((u64, _), _)| {
        let kind = kind.as_u64().filter(|kind| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind))?;
        Some(json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": kind != USER_DEFINED
        }))
    });
    json["added_tokens"] = added.collect();
    json["model"]["vocab"] = Value::Object(vocabulary);
    let bos = token_text(container, "bos_token_id").filter(|_| flag("add_bos_token", adds_bos));
    if let Some(bos) = bos {
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let first = json!({"SpecialToken": {"id": bos, "type_id": 0}});
        let id = container.number("tokenizer.ggml.bos_token_id");
        json["post_processor"] = json!({
            "type": "TemplateProcessing", "single": [first, text("A")], "pair": [first, text("A"), first, text("B")],
            "special_tokens": {bos.clone(): {"id": bos, "ids": [id], "tokens": [bos]}}
        });
    }
    Ok(json)
}

/// Byte-pair encoding of bytes, as GPT-2 has it.
fn byte_level(container: &Container, pre: &str) -> Result<Value, Fault> {
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex});
    let split =
        |pattern| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let steps = match pre {
        "qwen2" => vec![split(QWEN2), bytes(false)],
        "llama-bpe" | "llama3" => vec![split(LLAMA3), bytes(false)],
        "smollm" => vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)],
        "gpt-2" | "default" => vec![bytes(true)],
        _ => return Err(Fault::Unsupported(format!("the pre-tokenizer \"{pre}\""))),
    };
    Ok(json!({
        "version": "1.0",
        "normalizer": (pre == "qwen2").then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": bytes(true),
        "model": {
            "type": "BPE", "ignore_merges": pre.starts_with("llama"), "byte_fallback": false,
            "merges": container.list("tokenizer.ggml.merges")
        }
    }))
}

/// SentencePiece's byte-pair encoding, whose merges follow from the tokens' scores.
fn sentence_piece(container: &Container, tokens: &[&str], space_first: bool) -> Value {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders = vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if space_first {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": token_text(container, "unknown_token_id"),
            "merges": merges(tokens, container.list("tokenizer.ggml.scores"))
        }
    })
}

/// Pairs of tokens whose texts together are a token's: of the best score first, then the longest left part.
fn merges(tokens: &[&str], scores: &[Value]) -> Vec<(String, String)> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let score = |id: usize| scores.get(id).and_then(Value::as_f64).unwrap_or(f64::NEG_INFINITY);
    let mut pairs = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut of_token: Vec<_> = splits.filter_map(|(a, b)| Some((*ids.get(a)?, *ids.get(b)?))).collect();
        of_token.sort_unstable();
        pairs.extend(of_token.into_iter().map(|pair| (score(id), pair)));
    }
    let length = |id: usize| tokens[id].chars().count();
    pairs.sort_by(|(x, (a, b)), (y, (c, d))| {
        y.total_cmp(x).then(length(*c).cmp(&length(*a))).then(length(*d).cmp(&length(*b)))
    });
    pairs.into_iter().map(|(_, (a, b))| (tokens[a].to_owned(), tokens[b].to_owned())).collect()
}
