//! The tokenizer: ids, text, and the mapping of tokens to text.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use uqac::model::tokenizer::{Tokenizer, TokenizerError};

/// The 256 characters of the byte-level alphabet, by byte.
fn alphabet() -> Vec<char> {
    let printable = |b: u32| (0x21..=0x7e).contains(&b) || (0xa1..=0xac).contains(&b) || b >= 0xae;
    let mut next = 0x100..;
    (0..256).map(|b| char::from_u32(if printable(b) { b } else { next.next().unwrap() }).unwrap()).collect()
}

/// A folder with a BPE tokenizer of these tokens (ids in order; the last is added as special), and a configuration.
fn folder(tokens: &[String], decoder: Value, config: Option<Value>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "x"},
        "added_tokens": [{"id": tokens.len() - 1, "content": tokens.last().unwrap(), "single_word": false,
                          "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    if let Some(config) = config {
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    }
    folder
}

fn open(tokens: &[String], decoder: Value, config: Option<Value>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_folder(folder(tokens, decoder, config).path())
}

/// Ids 0..256 are the bytes, followed by pieces that end or begin within a character, words, and an added token.
fn byte_level() -> Tokenizer {
    let alphabet = alphabet();
    let piece = |bytes: &[u8]| bytes.iter().map(|&b| alphabet[b as usize]).collect::<String>();
    let mut tokens: Vec<String> = (0..=255).map(|b| piece(&[b])).collect();
    tokens.extend([
        piece(" a".as_bytes()),
        piece(&[b'x', 0xe6, 0xbc]),
        piece(&[0xa2, 0xe5, 0xad]),
        piece("字é".as_bytes()),
    ]);
    tokens.push("<｜end｜>".to_string());
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    open(&tokens, decoder, None).unwrap()
}

/// Like Llama 2: ids 0..256 are `<0xNN>`, followed by words with ▁, and an added token.
fn byte_fallback(strip: bool) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    tokens.extend(["▁a", "b", "▁", "▁▁", "漢", "</s>"].map(String::from));
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strip {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    open(&tokens, json!({"type": "Sequence", "decoders": decoders}), None).unwrap()
}

fn words(decoder: Value) -> Tokenizer {
    let tokens = ["▁the", "▁", "re", "##s", ".", "n't", "é", "</s>"].map(String::from);
    open(&tokens, decoder, None).unwrap()
}

/// Checks everything that the documentation promises about ranges and streams, for these ids. `streams_exactly` is
/// false for byte-fallback tokenizers, where a broken run of bytes streams differently.
fn check(tokenizer: &Tokenizer, ids: &[u32], streams_exactly: bool) {
    let (text, ranges) = tokenizer.decode_with_offsets(ids).unwrap();
    assert_eq!(text, tokenizer.decode(ids).unwrap(), "{ids:?}");
    assert_eq!(ranges.len(), ids.len());
    let mut end = 0;
    let mut start = 0;
    for range in &ranges {
        assert!(range.start >= start && range.start <= end, "{ids:?}: {ranges:?} in {text:?}");
        assert!(text.get(range.clone()).is_some(), "{ids:?}: {range:?} cuts a character of {text:?}");
        (start, end) = (range.start, end.max(range.end));
    }
    assert_eq!(end, text.len());
    let mut stream = tokenizer.stream();
    let mut streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    streamed += &stream.finish();
    if streams_exactly || !text.contains('\u{fffd}') {
        assert_eq!(streamed, text, "{ids:?}");
    }
    if !text.contains('\u{fffd}') {
        let bytes = ids.iter().enumerate().flat_map(|(i, id)| tokenizer.token_bytes(*id, i == 0).unwrap());
        assert_eq!(String::from_utf8(bytes.collect()).unwrap(), text, "{ids:?}");
    }
}

proptest! {
    #[test]
    fn byte_level_offsets_and_streams_add_up(ids in prop::collection::vec(prop_oneof![0u32..261, 192u32..261], 0..40)) {
        check(&byte_level(), &ids, true);
    }

    #[test]
    fn byte_fallback_offsets_and_streams_add_up(
        ids in prop::collection::vec(prop_oneof![0u32..262, 256u32..262, 128u32..240], 0..40),
        text in "\\PC{0,12}",
        strip: bool,
    ) {
        let tokenizer = byte_fallback(strip);
        check(&tokenizer, &ids, false);
        let mut spelled: Vec<u32> = ids.into_iter().filter(|id| *id >= 256).collect();
        spelled.extend(text.bytes().map(u32::from));
        spelled.push(256);
        check(&tokenizer, &spelled, true);
    }

    #[test]
    fn word_offsets_and_streams_add_up(ids in prop::collection::vec(0u32..8, 0..20)) {
        let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
        let strip = json!({"type": "Strip", "content": "▁", "start": 1, "stop": 0});
        for decoder in [
            Value::Null,
            metaspace("always"),
            metaspace("never"),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "Sequence", "decoders": [strip, {"type": "Fuse"}]}),
        ] {
            check(&words(decoder), &ids, true);
        }
    }
}

#[test]
fn parts_of_a_character_get_the_whole_character() {
    let tokenizer = byte_level();
    // "x漢字 a": x + two thirds of 漢, its rest + two thirds of 字, its rest, " a".
    let (text, ranges) = tokenizer.decode_with_offsets(&[257, 258, 0x97, 256]).unwrap();
    assert_eq!(text, "x漢字 a");
    assert_eq!(ranges, [0..4, 1..7, 4..7, 7..9]);
    let mut stream = tokenizer.stream();
    let pushed: Vec<String> = [257, 258, 0x97, 256].map(|id| stream.push(id).unwrap()).into();
    assert_eq!(pushed, ["x", "漢", "字", " a"]);
    assert_eq!(stream.finish(), "");

    let tokenizer = byte_fallback(true);
    let (text, ranges) = tokenizer.decode_with_offsets(&[256, 0xe6, 0xbc, 0xa2, 257, 261]).unwrap();
    assert_eq!(text, "a漢b</s>");
    assert_eq!(ranges, [0..1, 1..4, 1..4, 1..4, 4..5, 5..9]);
}

#[test]
fn a_stream_holds_back_half_characters_only() {
    let tokenizer = byte_level();
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(0xf0).unwrap(), "");
    assert_eq!(stream.push(0x9f).unwrap(), "");
    assert_eq!(stream.push(b'a'.into()).unwrap(), "\u{fffd}a", "not a character after all");
    assert!(matches!(stream.push(999), Err(TokenizerError::UnknownId { id: 999, .. })));
    assert_eq!(stream.push(0xe6).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

#[test]
fn long_sequences_take_linear_time() {
    let started = std::time::Instant::now();
    for tokenizer in [byte_level(), byte_fallback(true)] {
        let bad: Vec<u32> = (0..100_000).map(|i| 0xe6 - i % 40).collect(); // never a complete character
        check(&tokenizer, &bad, false);
    }
    assert!(started.elapsed().as_secs() < 20, "quadratic time would be minutes");
}

#[test]
fn ids_and_tokens() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.vocab_size(), 261);
    assert_eq!(tokenizer.decode_token(260).unwrap(), "<｜end｜>");
    assert_eq!(tokenizer.decode_token(0xe6).unwrap(), "\u{fffd}");
    assert_eq!(tokenizer.decode(&[]).unwrap(), "");
    assert_eq!((tokenizer.config.special_tokens.get("bos_token"), tokenizer.eos_token_id()), (None, None));
    let error = tokenizer.decode(&[0, 261]).unwrap_err();
    assert!(error.to_string().contains("token id 261 is not in the tokenizer's vocabulary of 261"), "{error}");
    assert!(tokenizer.decode_with_offsets(&[u32::MAX]).is_err());
    assert!(tokenizer.decode_token(u32::MAX).is_err());
    // Truncation to 3 and padding to 99 in tokenizer.json do not apply.
    assert_eq!(tokenizer.encode("abcde<｜end｜>", true).unwrap(), [97, 98, 99, 100, 101, 260]);
}

/// As in transformers 5, for BPE.
#[test]
fn spaces_are_not_cleaned_up() {
    let tokens = ["it", " 's", " do", " n't", " .", "x"].map(String::from);
    let tokenizer =
        open(&tokens, json!({"type": "Fuse"}), Some(json!({"clean_up_tokenization_spaces": true}))).unwrap();
    assert_eq!(tokenizer.decode(&[0, 1, 2, 3, 4]).unwrap(), "it 's do n't .");
}

#[test]
fn tokens_only_the_configuration_lists_are_added() {
    let tokens = ["a", "b", "<s>"].map(String::from);
    let added = |id: &str| {
        json!({"bos_token": {"content": "<s>", "special": true}, "eos_token": "<|stop|>", "add_bos_token": true,
               "added_tokens_decoder": {"2": {"content": "<s>"}, id: {"content": "<|stop|>", "special": true}}})
    };
    let tokenizer = open(&tokens, json!({"type": "Fuse"}), Some(added("3"))).unwrap();
    assert_eq!((tokenizer.bos_token_id(), tokenizer.eos_token_id()), (Some(2), Some(3)));
    assert_eq!(tokenizer.config.special_tokens["bos_token"], "<s>");
    assert_eq!(tokenizer.eos_token(), Some("<|stop|>"));
    // the file's post-processor puts nothing around a text
    assert_eq!(tokenizer.encode("ab<|stop|>", true).unwrap(), [0, 1, 3]);
    assert_eq!(tokenizer.encode("ab<|stop|>", false).unwrap(), [0, 1, 3]);
    assert_eq!(tokenizer.vocab_size(), 4);
    let error = open(&tokens, json!({"type": "Fuse"}), Some(added("7"))).err().unwrap().to_string();
    assert!(error.contains("\"<|stop|>\" should have id 7") && error.contains("gets 3"), "{error}");
}

#[test]
fn bad_files_are_named_and_explained() {
    let empty = tempfile::tempdir().unwrap();
    let error = |folder: &Path| Tokenizer::from_folder(folder).err().unwrap().to_string();
    let message = error(empty.path());
    assert!(message.contains("tokenizer.json is missing;") && message.contains("save_pretrained"), "{message}");
    std::fs::write(empty.path().join("tokenizer.model"), "").unwrap();
    assert!(error(empty.path()).contains("slow tokenizer.model that is there must be converted"));
    for bad in ["", "{}", "[1]", "{\"model\": 3}", "\u{0}"] {
        std::fs::write(empty.path().join("tokenizer.json"), bad).unwrap();
        assert!(error(empty.path()).contains("tokenizer.json: not a tokenizer"), "{bad}");
    }
    let tokens = ["a", "b"].map(String::from);
    let open = |decoder, config| open(&tokens, decoder, config).err().unwrap();
    let ctc = open(json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": true}), None);
    assert!(ctc.to_string().contains("the decoder CTC is not supported"), "{ctc}");
    for config in [
        json!({"bos_token": 3}),
        json!({"eos_token": {"text": "b"}}),
        json!({"added_tokens_decoder": [1]}),
        json!({"added_tokens_decoder": {"one": "b"}}),
        json!({"added_tokens_decoder": {"1": null}}),
    ] {
        let error = open(Value::Null, Some(config.clone()));
        assert!(matches!(error, TokenizerError::Field { .. }), "{config}: {error:?}");
        assert!(error.to_string().contains("tokenizer_config.json: \""), "{error}");
    }
    assert!(matches!(open(Value::Null, Some(json!([]))), TokenizerError::Parse { .. }));
}

/// Folders of locally available published models, with the names of their golden files.
fn published() -> Vec<(PathBuf, &'static str)> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let models = std::env::var_os("UQAC_MODELS").map_or(Path::new(&home).join(".cache/uqac-models"), PathBuf::from);
    let names = [
        ("smollm2-135m-instruct", "smollm2-135m"),
        ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b"),
        ("gemma-3-270m", "gemma-3-270m"),
    ];
    let folders = names.map(|(folder, golden)| (models.join(folder), golden));
    let (here, away): (Vec<_>, Vec<_>) = folders.into_iter().partition(|(f, _)| f.join("tokenizer.json").exists());
    away.iter().for_each(|(folder, _)| test_support::skipped(format_args!("{} is not there", folder.display())));
    here
}

#[test]
fn golden_responses_decode_to_their_text() {
    for (folder, golden) in published() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../shared/golden/uqac_{golden}.jsonl.gz"));
        if !path.exists() {
            test_support::skipped(format_args!("{} is not there", path.display()));
            continue;
        }
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        let lines = std::io::read_to_string(flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())).unwrap();
        for line in lines.lines() {
            let golden: Value = serde_json::from_str(line).unwrap();
            let ids: Vec<u32> = serde_json::from_value(golden["input_ids"].clone()).unwrap();
            let prompt_len = golden["n_instr"].as_u64().unwrap() as usize;
            let text = tokenizer.decode(&ids[prompt_len..]).unwrap();
            // Gemma's template trims the response before it is encoded again.
            assert!(text.contains(golden["generated"].as_str().unwrap().trim()), "{}: {text:?}", golden["id"]);
            check(&tokenizer, &ids, true);
        }
    }
}

/// Arbitrary ids, including byte pieces and added tokens, and arbitrary text, through the published tokenizers.
#[test]
fn published_tokenizers_add_up_on_random_ids() {
    for (folder, name) in published() {
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        let streams_exactly = name != "gemma-3-270m";
        let n = tokenizer.vocab_size() as u64;
        let mut state = 1u64;
        for _ in 0..300 {
            let mut draw = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Half of them from the lowest ids, where the bytes and the special tokens are.
                let limit = if state >> 63 == 0 { n } else { 600 };
                ((state >> 20) % limit) as u32
            };
            let ids: Vec<u32> = (0..30).map(|_| draw()).collect();
            check(&tokenizer, &ids, streams_exactly);
        }
        for text in ["naïve 漢字 🤖👩‍👩‍👧 \\boxed{42}\n\n  x", "日本語で購入した。", "\u{1f9d1}\u{1f3fd}\u{200d}\u{1f680}"]
        {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
            check(&tokenizer, &ids, true);
        }
    }
}
