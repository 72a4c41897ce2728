//! Tokenizer files and chat templates crafted to do harm: each ends quickly, with an error that gives the reason.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uqac::model::chat::{ChatError, ChatTemplate, Message};
use uqac::model::tokenizer::{Tokenizer, TokenizerError};

/// Far longer than each takes, and far shorter than without the limits.
const SOON: Duration = Duration::from_secs(10);

fn render(source: &str) -> Result<String, ChatError> {
    let start = Instant::now();
    let messages = [Message::new("user", "Why?"), Message::new("assistant", "So.")];
    let result = ChatTemplate::new(source, Some("<s>"), None).and_then(|template| template.render(&messages, true));
    let took = start.elapsed();
    assert!(took < SOON, "{took:?}: {:.80}", source);
    result
}

fn repeated(start: &str, part: &str, n: usize, end: &str) -> String {
    format!("{start}{}{end}", part.repeat(n))
}

/// Work, memory and depth while a template runs. Templates that are not stopped are listed in `model::chat::jinja`,
/// and counted by `template_bombs`.
#[test]
fn costly_templates_are_stopped() {
    let doubling = |step: &str| {
        format!("{{% set n = namespace(a='ab', b=[1, 2]) %}}{{% for i in range(99) %}}{{% {step} %}}{{% endfor %}}")
    };
    let mut sources: Vec<String> = [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{{ range(100000) | list | length }}{% endfor %}",
        "{% for i in range(100000) %}{{ range(100000) | join }}{% endfor %}",
        "{% for i in range(100000) %}{% if 'b' in 'a' * 1000000 %}{% endif %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s[999999] ~ s.find('b') }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for c in s %}{% for d in s %}{% endfor %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set t = s.strip(s) %}{% endfor %}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%.1000000000f' % 1.5 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{:.999999999f}'.format(1.5) }}",
        "{{ 'a' | indent(1000000000) }}",
        "{{ ('a\\n' * 100000) | indent(100000) }}",
        "{{ ('a\\n' * 100000) | indent('x' * 100000) }}",
        "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.rjust(1000000000, 'é') }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ '\\t'.expandtabs(1000000000) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ (1, 2) * 1000000000 }}",
        "{{ 2 ** 1000000000 }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ ('a' * 3000).replace('', 'b' * 30000) }}",
        "{{ ('a' * 3000).replace('a', 'b' * 30000) }}",
        "{{ ('b' * 30000).join(['a'] * 3000) }}",
        "{{ (['a'] * 3000) | join('b' * 30000) }}",
        "{% set n = namespace() %}{% for i in range(100000) %}{% set n.a = [n.a] %}{% endfor %}",
        "{% set n = namespace() %}{% for i in range(100000) %}{% set n.a = {'k': n.a} %}{% endfor %}",
        "{% set n = namespace(a=1) %}{% for i in range(100000) %}{% set n.a = (n.a, n.a).index %}{% endfor %}",
    ]
    .map(str::to_string)
    .into();
    sources.extend(
        [
            "set n.a = n.a + n.a",
            "set n.a = n.a ~ n.a",
            "set n.a = n.a * 2",
            "set n.a = n.a.replace('a', 'aa')",
            "set n.a = n.a | replace('a', 'aa')",
            "set n.a = '%s%s' % (n.a, n.a)",
            "set n.a = '{0}{0}'.format(n.a)",
            "set n.a = n.a.join([n.a, n.a])",
            "set n.a = (n.a | tojson) + 'x' | tojson",
            "set n.b = n.b * 2",
        ]
        .map(doubling),
    );
    // small in memory, since the parts are shared, but endless to traverse
    sources.extend(["n.b | tojson", "n.b", "n.b | string | length"].map(|end| {
        let grown = "{% set n = namespace(b=[1, 2]) %}{% for i in range(90) %}{% set n.b = [n.b, n.b] %}{% endfor %}";
        format!("{grown}{{{{ {end} }}}}")
    }));
    for source in &sources {
        let error = render(source).err().unwrap_or_else(|| panic!("not stopped: {source:.200}"));
        assert!(matches!(error, ChatError::Limit { .. } | ChatError::Render { .. }), "{source:.200}: {error:?}");
    }
}

/// Depth and length of the source text.
#[test]
fn deep_templates_are_refused() {
    for (start, part, n, end) in [
        ("{{ ", "(", 20_000, "}}"),
        ("{{ ", "[", 20_000, "}}"),
        ("{{ ", "{1:", 20_000, "}}"),
        ("{{ ", "+", 20_000, "1 }}"),
        ("{{ ", "a[", 20_000, "}}"),
        ("{{ ", "a(", 20_000, "}}"),
        ("{{ ", "a|f(", 20_000, "}}"),
        ("", "{% if 1 %}", 20_000, ""),
        ("", "{% for x in y %}", 20_000, ""),
        ("", "{% macro m() %}", 20_000, ""),
        ("{% set ", "(", 20_000, "%}"),
        ("", "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}", 100_000, ""),
    ] {
        let error = render(&repeated(start, part, n, end)).unwrap_err();
        assert!(matches!(error, ChatError::Syntax { .. }), "{start}{part}...: {error:?}");
    }
}

/// A chain of operators that cannot be folded takes quadratic time to compile; at the limit this is still quick.
#[test]
fn long_chains_of_operators_are_refused() {
    for (start, part) in [("{{ m", "+1"), ("{{ m", " and 1"), ("{{ '}}' ~ {'a': {}} ~ m", "~''"), ("{{ 1", "+1")] {
        let begun = std::time::Instant::now();
        assert!(
            !matches!(render(&repeated(start, part, 7_900, " }}")), Err(ChatError::Syntax { .. })),
            "{start}{part}"
        );
        assert!(begun.elapsed().as_secs() < 30, "{start}{part}: {:?}", begun.elapsed());
        let error = render(&repeated(start, part, 20_000, " }}")).unwrap_err();
        assert!(error.to_string().contains("operators: expected at most 8000"), "{error}");
    }
}

/// Long but shallow templates are rendered.
#[test]
fn long_rows_are_no_depth() {
    for (start, part, end, text) in [
        ("{{ 1", "+1", "}}", "2001"),
        ("{{ 'a'", "~''", "}}", "a"),
        ("{{ 1", " and 1", "}}", "1"),
        ("{{ 1", " < 2 > 1", "}}", "True"),
        ("{{ 'a'", "|upper", "}}", "A"),
        ("{{ 'a'", ".lower()", "}}", "a"),
        ("{% if 0 %}", "{% elif 0 %}", "{% else %}b{% endif %}", "b"),
        ("{{ [", "1,", "] | length }}", "2000"),
    ] {
        // as long as the fuel of a template without messages allows
        assert_eq!(render(&repeated(start, part, 2_000, end)).unwrap(), text, "{start}{part}");
    }
    for (start, part, end, text) in
        [("{{ ", "not ", "1 }}", "True"), ("{{ ", "-", "1 }}", "1"), ("{{ ", "1 if 1 else ", "1 }}", "1")]
    {
        assert_eq!(render(&repeated(start, part, 1_000, end)).unwrap(), text, "{start}{part}");
    }
    // the maximum i128, and equality of a list whose parts are shared
    let sum = render("{{ 170141183460469231731687303715884105727 + 1 }}").unwrap();
    assert_eq!(sum, "170141183460469231731687303715884105728");
    let grown = "{% set n = namespace(b=[1, 2]) %}{% for i in range(90) %}{% set n.b = [n.b, n.b] %}{% endfor %}";
    assert_eq!(render(&format!("{grown}{{{{ n.b == [n.b[0], n.b[1]] }}}}")).unwrap(), "True");
}

/// A hostile template ends the same way wherever it is rendered.
#[test]
fn a_small_stack_is_enough() {
    let run = || {
        let error = render("{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}").unwrap_err();
        assert!(matches!(&error, ChatError::Render { message } if message.contains("recursion limit")), "{error:?}");
    };
    std::thread::Builder::new().stack_size(128 << 10).spawn(run).unwrap().join().unwrap();
}

#[test]
fn a_template_that_needs_tools_says_so() {
    for source in ["{{ tools[0].function.name }}", "{% if not tools %}{{ raise_exception('tools?') }}{% endif %}"] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, ChatError::NeedsTools { .. }), "{error:?}");
        assert!(error.to_string().contains("requires tools"), "{error}");
    }
    // Jinja2 refuses a loop over none
    assert_eq!(render("{% for tool in tools %}{{ tool.function.name }}{% endfor %}").unwrap(), "");
    assert!(matches!(render("{{ raise_exception('no') }}").unwrap_err(), ChatError::Template { .. }));
}

/// A tokenizer with four words, after a change.
fn open(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let folder = tempfile::tempdir().unwrap();
    let mut tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3}}
    });
    change(&mut tokenizer);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    open_folder(folder.path())
}

fn open_folder(folder: &Path) -> Result<Tokenizer, TokenizerError> {
    let start = Instant::now();
    let result = Tokenizer::from_folder(folder);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    result
}

/// If the library panics, the error contains its message.
#[test]
fn panics_of_the_library_are_errors() {
    let charsmap = |base64: &str| json!({"type": "Precompiled", "precompiled_charsmap": base64});
    let tokenizer = open(|t| t["normalizer"] = charsmap("AAAAAA==")).unwrap();
    let error = tokenizer.encode("a", false).unwrap_err();
    assert!(matches!(error, TokenizerError::Encode(_)), "{error:?}");
    assert!(error.to_string().contains("spm_precompiled"), "{error}");
    let tokenizer = open(|t| t["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0})).unwrap();
    assert!(matches!(tokenizer.encode("a", false).unwrap_err(), TokenizerError::Encode(_)));
    let tokenizer = open(|_| {}).unwrap();
    assert_eq!(tokenizer.encode("a b", false).unwrap(), [1, 2]);
}

/// Input that would fill the memory or never end is rejected before it reaches the library.
#[test]
fn oversized_tokenizers_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 12] = [
        // claims that a trie of 4 GiB follows
        (|t| t["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}), "trie"),
        (
            |t| {
                t["normalizer"] =
                    json!({"type": "Precompiled", "precompiled_charsmap": format!("AAAAAGFh{}", "YWFh".repeat(1000))})
            },
            "longer",
        ),
        (
            |t| {
                let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
                t["normalizer"] = json!({"type": "Sequence", "normalizers": vec![replace; 40]});
            },
            "longer",
        ),
        (
            |t| {
                let replace = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "aa"});
                t["normalizer"] = json!({"type": "Sequence", "normalizers": vec![replace; 40]});
            },
            "longer",
        ),
        (
            |t| {
                t["pre_tokenizer"] = json!({"type": "Split", "behavior": "Isolated", "invert": false,
                                         "pattern": {"Regex": "(?=((a{99}){99}){99})"}})
            },
            "too large",
        ),
        (
            |t| {
                t["pre_tokenizer"] = json!({"type": "Split", "behavior": "Isolated", "invert": false,
                                         "pattern": {"Regex": "((a*)*)*(?!b)"}})
            },
            "repeats a repetition",
        ),
        (|t| t["added_tokens"] = json!([added(0, &"a".repeat(30 << 20))]), "added token"),
        (|t| t["added_tokens"] = (0..40_000).map(|i| added(i, &format!("{i}{}", "a".repeat(750)))).collect(), "in all"),
        (
            |t| {
                t["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a".repeat(1 << 20), -1.0]]})
            },
            "a token of",
        ),
        (
            |t| {
                let ids = vec![0; 900];
                t["post_processor"] = json!({
                    "type": "TemplateProcessing",
                    "single": vec![json!({"SpecialToken": {"id": "a", "type_id": 0}}); 900], "pair": [],
                    "special_tokens": {"a": {"id": "a", "ids": ids, "tokens": vec!["a"; 900]}}
                });
            },
            "in all",
        ),
        (|t| t["decoder"] = json!({"type": "Sequence", "decoders": vec![json!({"type": "Fuse"}); 100_000]}), "items"),
        (|t| t["version"] = json!("2.0"), "version"),
    ];
    for (change, says) in changes {
        let error = open(change).err().unwrap_or_else(|| panic!("{says}: not refused"));
        assert!(matches!(error, TokenizerError::Parse { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
}

fn added(id: usize, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": true})
}

/// In one pass: one at a time, each would rebuild the table of all.
#[test]
fn many_tokens_of_the_configuration_are_added_in_one_go() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer =
        json!({"version": "1.0", "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}}});
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut tokens = serde_json::Map::new();
    for id in 2..20_002 {
        tokens.insert(id.to_string(), json!({"content": format!("<extra_{id}>"), "special": true}));
    }
    let write = |tokens: &serde_json::Map<String, Value>| {
        let config = json!({"added_tokens_decoder": tokens}).to_string();
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    };
    write(&tokens);
    let tokenizer = open_folder(folder.path()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 20_002);
    assert_eq!(tokenizer.encode("<extra_2><extra_20001>", false).unwrap(), [2, 20_001]);
    // one id is skipped, which would shift all ids after it
    tokens.remove("700");
    write(&tokens);
    let error = open_folder(folder.path()).err().unwrap();
    assert!(matches!(error, TokenizerError::AddedTokenId { expected: 701, found: 700, .. }), "{error:?}");
}

/// Special files are rejected instead of waited for.
#[cfg(unix)]
#[test]
fn a_pipe_is_no_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status();
        assert!(made.is_ok_and(|status| status.success()));
    };
    pipe("tokenizer.json");
    assert!(matches!(open_folder(folder.path()).err().unwrap(), TokenizerError::Read { .. }));
}
