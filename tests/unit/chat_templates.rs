//! Chat templates compared with what transformers and Jinja2 render.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use uqac::model::chat::{ChatError, ChatTemplate, Message, encode_plain};
use uqac::model::tokenizer::Tokenizer;

fn messages(turns: &[(&str, &str)]) -> Vec<Message> {
    turns.iter().map(|(role, content)| Message::new(*role, *content)).collect()
}

/// The conversation of [`JINJA`].
fn conversation() -> Vec<Message> {
    messages(&[("system", "Be <terse> & \"kind\"."), ("user", " Why é漢?\n"), ("assistant", "So.")])
}

/// A folder with a whitespace tokenizer that prepends `<s>` to a text, and this tokenizer_config.json.
fn folder(config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": [special(0, "<s>"), special(1, "</s>")],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
        },
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"<s>": 0, "</s>": 1, "?": 2, "hello": 3, "you": 4}}
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

fn from_folder(folder: &Path) -> Result<Option<ChatTemplate>, ChatError> {
    ChatTemplate::from_folder(folder, &Tokenizer::from_folder(folder).unwrap())
}

/// Every conversation of seven published templates renders to the same text as in transformers.
#[test]
fn published_templates_render_as_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden/chat_templates.json");
    if !path.exists() {
        test_support::skipped(format_args!("{} is not there", path.display()));
        return;
    }
    let models: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(models.len(), 7);
    for model in &models {
        let (name, bos, eos) = (&model["name"], model["bos_token"].as_str(), model["eos_token"].as_str());
        let template = model["chat_template"].as_str().map(|source| ChatTemplate::new(source, bos, eos).unwrap());
        for (i, case) in model["cases"].as_array().unwrap().iter().enumerate() {
            let turns: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let Some(template) = &template else {
                // transformers reports this when rendering; here there is no template to render.
                assert!(case["error"].as_str().unwrap().contains("chat_template is not set"), "{name}, case {i}");
                let folder = folder(&json!({"chat_template": null}));
                assert!(from_folder(folder.path()).unwrap().is_none());
                continue;
            };
            let rendered = template.render(&turns, case["add_generation_prompt"].as_bool().unwrap());
            match case["error"].as_str() {
                None => assert_eq!(rendered.unwrap(), case["text"].as_str().unwrap(), "{name}, case {i}"),
                Some(error) => assert!(rendered.unwrap_err().to_string().contains(error), "{name}, case {i}"),
            }
        }
    }
}

/// Templates and their texts, rendered by Jinja2 3.1.6 as set up by transformers, for [`conversation`] with
/// `add_generation_prompt`, `bos_token` `<s>`, and no `tools` or `documents`.
const JINJA: &[(&str, &str)] = &[
    (
        r##"  {% if messages %}
line
  {% endif %}
end
"##,
        r##"line
end"##,
    ),
    (
        r##"{{ tools is defined }}{{ tools is none }}{{ documents }}{{ date_string is defined }}[{{ date_string }}]{% if not tools %}no{% endif %}{{ bos_token }}|{{ pad_token is defined }}"##,
        r##"TrueTrueNoneFalse[]no<s>|False"##,
    ),
    (
        r##"{{ messages | tojson }}"##,
        r##"[{"role": "system", "content": "Be <terse> & \"kind\"."}, {"role": "user", "content": " Why é漢?\n"}, {"role": "assistant", "content": "So."}]"##,
    ),
    (
        r##"{{ {'a': [1, 2.5, true, none, "<é'&\"\n\t\\>"], 'b': {}, 'c': []} | tojson }}"##,
        r##"{"a": [1, 2.5, true, null, "<é'&\"\n\t\\>"], "b": {}, "c": []}"##,
    ),
    (
        r##"{{ {'a': [1, {'x': 1e16}], 'b': {}, 'c': [[], [0.00001]]} | tojson(indent=2) }}"##,
        r##"{
  "a": [
    1,
    {
      "x": 1e+16
    }
  ],
  "b": {},
  "c": [
    [],
    [
      1e-05
    ]
  ]
}"##,
    ),
    (
        r##"{{ {'b': 1, 'a': 'é😀'} | tojson(ensure_ascii=True, sort_keys=true, separators=(',', ':')) }}"##,
        r##"{"a":"\u00e9\ud83d\ude00","b":1}"##,
    ),
    (
        r##"{{ [1e300, 0.1, 1.0, 123456789012345680.0, 0.0001, 1e15] | tojson }}"##,
        r##"[1e+300, 0.1, 1.0, 1.2345678901234568e+17, 0.0001, 1000000000000000.0]"##,
    ),
    (
        r##"{% for m in messages[1:] %}{{ m.role }},{% endfor %}{% for m in messages[::-1] %}{{ loop.index }}{{ m['role'] }};{% endfor %}{{ messages[-1].content }}"##,
        r##"user,assistant,1assistant;2user;3system;So."##,
    ),
    (
        r##"{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}"##,
        r##"user"##,
    ),
    (
        r##"{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s + m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}"##,
        r##"3sua"##,
    ),
    (
        r##"{{ ' a b '.strip() }}|{{ 'xxayx'.strip('x') }}|{{ 'a,b,c'.split(',', 1) | length }}|{{ 'a,b'.split(',')[-1] }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'a'.upper() }}|{{ 'abab'.replace('a', 'x') }}|{{ 'ab'.removeprefix('a') }}|{{ 'ab'.removesuffix('b') }}|{{ 'a-b-c'.rsplit('-', 1)[0] }}|{{ 'a-b-c'.partition('-')[2] }}|{{ 'a-b-c'.rpartition('-')[0] }}|{{ 'A b'.title() }}|{{ 'abc'.find('c') }}|{{ 'x'.join(['a', 'b']) }}"##,
        r##"a b|ay|2|b|True|True|A|xbxb|b|a|a-b|b-c|a-b|A B|2|axb"##,
    ),
    (
        r##"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('z', 'd') }}{{ {'a': 1}.get('z') }}"##,
        r##"a=1 b=2 1dNone"##,
    ),
    (
        r##"{{ messages[0].content is string }}{{ messages[0] is mapping }}{{ messages is iterable }}{{ messages is sequence }}{{ 'abc' is iterable }}{{ 'abc' is sequence }}{{ messages[0] is sequence }}{{ 1 is number }}{{ none is none }}{{ messages[0].tool_calls is defined }}{{ messages[0] is string }}{{ true is boolean }}"##,
        r##"TrueTrueTrueTrueTrueTrueTrueTrueTrueFalseFalseTrue"##,
    ),
    (
        r##"{%- macro show(m, mark='*') -%}
{{ mark }}{{ m.role | capitalize }}{{ mark }}
{%- endmacro -%}
{{ show(messages[0]) }} {{ show(messages[1], mark='_') }}"##,
        r##"*System* _User_"##,
    ),
    (
        r##"{{ messages | map(attribute='role') | join(', ') }} {{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content }} {{ messages | length }} {{ messages | rejectattr('role', 'equalto', 'system') | list | length }} {{ messages | last | items | list | length }}"##,
        r##"system, user, assistant  Why é漢?
 3 2 2"##,
    ),
    (
        r##"{{ ('b' in 'abc') }} {{ 'role' in messages[0] }} {{ 'tool_calls' in messages[0] }} {{ 'x' ~ 1 ~ none }} {{ 7 // 2 }} {{ 7 % 2 }} {{ '-' * 3 }} {{ 2 ** 3 }} {{ 'yes' if messages else 'no' }}{{ 'x' if false }}"##,
        r##"True True False x1None 3 1 --- 8 yes"##,
    ),
    (
        r##"  {%- if add_generation_prompt -%}  
  go  
  {%- endif +%}  
tail
{#- note -#}
  x {{- ' y ' -}} z"##,
        r##"go  
tailx y z"##,
    ),
    (
        r##"{% set x %}
block {{ 1 + 1 }}
{% endset %}
<{{ x | trim }}>{{ '\x1f a \u00a0' | trim }}|{{ x | default('d') }}{{ nope | default('d') }}{{ '' | default('e', true) }}"##,
        r##"<block 2>a|block 2
de"##,
    ),
    (
        r##"{% filter upper %}abc{% endfilter %}{% raw %}{{ x }}{% endraw %}{% if messages[0].role == "system" and not (messages | length < 2) %}ok{% elif false %}{% else %}no{% endif %}"##,
        r##"ABC{{ x }}ok"##,
    ),
    (
        r##"{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if not loop.last }}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}"##,
        r##"TrueFalse3useraFalseFalse3systemassistantbFalseTrue3usera"##,
    ),
    (
        r##"{% set a, b = 'x', 'y' %}{{ a + b }}{% with c = 1 %}{{ c }}{% endwith %}{% for m in messages if m.role != 'user' %}{{ m.role }}{% endfor %}{{ range(3) | list | tojson }}{{ range(1, 7, 3) | sum }}{{ [3, 1, 2] | sort | first }}{{ dict(a=1) | tojson }}"##,
        r##"xy1systemassistant[0, 1, 2]51{"a": 1}"##,
    ),
    (
        r##"{{ "%s has %d" | format('a', 2) }} {{ "a\nb" | indent(2) }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }} {{ 'a b' | replace(' ', '_') | upper }} {{ '3' | int + 1 }} {{ 2.50 | round(1) }} {{ 1.0 }} {{ true }} {{ [1, 2] | string }} {{ 10 / 4 }} {{ 'x' | string == 'x' }}"##,
        r##"a has 2 a
  b bc cba A_B 4 2.5 1.0 True [1, 2] 2.5 True"##,
    ),
    (
        r##"{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("day") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment" }}{%- endif %}
{{- date_string + system_message }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|' + message['role'] + '|>\n\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message and message.tool_calls | length != 1 %}
        {{- raise_exception("one tool call at a time") }}
    {%- endif %}
{%- endfor %}
"##,
        r##"<s>dayBe <terse> & "kind".<|user|>

Why é漢?<|eot|><|assistant|>

So.<|eot|>"##,
    ),
    (
        r##"{%- set loop_messages = messages %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0, last=(user_messages | last).content) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.tool_calls is defined and message.tool_calls is not none) %}
        {%- if (message["role"] == "system") != (ns.index % 3 == 0) %}{{ raise_exception("order") }}{%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- ns.index }}{{ ns.last }}
{%- for message in messages %}{{ "\n" if not loop.first }}{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}{% endfor %}
"##,
        r##"3 Why é漢?
0/3/2
1/2/1
2/1/0"##,
    ),
    (
        r##"{{ (messages[0].content.split(' ')[0] + '!').lower() }} {{ 'a\n\nb'.split('\n\n') | tojson }} {{ ' a  b '.split() | tojson }} {{ 'a,,b'.split(',') | length }} {{ 'ab\ncd'.splitlines() | tojson }} {{ ('a' in ['a']) and not ('b' in ('c',)) }} {{ [1, 2] + [3] }} {{ 'x' in {'x': 1}.keys() }} {{ {'x': 1}.keys() | list | tojson }} {{ not none }} {{ messages[5] is defined }} {{ (1, 2) | length }} {{ 'é' | length }} {{ "a" "b" }} {{ -1 % 3 }} {{ -7 // 2 }} {{ messages[0].content[:2] }} {{ ['a'] }} {{ {'a': none} }} {{ 1 == 1.0 }} {{ 'a' < 'b' < 'c' }} {{ none or 'x' }} {{ 'x' and '' }} {{ [] or 'y' }}"##,
        r##"be! ["a", "b"] ["a", "b"] 3 ["ab", "cd"] True [1, 2, 3] True ["x"] True False 2 1 ab 2 -4 Be ['a'] {'a': None} True True x  y"##,
    ),
];

#[test]
fn jinja_is_jinja2s() {
    for (source, expected) in JINJA {
        let template = ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap_or_else(|e| panic!("{source}: {e}"));
        let text = template.render(&conversation(), true).unwrap_or_else(|e| panic!("{source}: {e}"));
        assert_eq!(text, *expected, "{source}");
        assert_eq!(template.source(), *source);
    }
}

/// Suites of templates rendered by Jinja2 3.1.6 as set up by transformers: the minimum number of agreeing results, and
/// the maximum number where both render, but differently. See the documentation of `model::chat::jinja` for the
/// differences.
const SUITES: [(&str, usize, usize, usize); 5] = [
    ("golden", 36, 36, 0),
    ("rust_table", 25, 25, 0),
    ("real", 784, 768, 0),
    ("elements", 633, 551, 12),
    ("snippets", 311, 181, 4),
];

/// The date on which Jinja2 rendered the suites, in UTC.
const RENDERED: jiff::civil::Date = jiff::civil::date(2026, 11, 26);

/// An expected text with [`RENDERED`] replaced by today's date, in the formats of the templates that call
/// `strftime_now`.
fn of_today(text: &str) -> String {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    ["%Y-%m-%d", "%d %B %Y", "%d %b %Y", "%B %d, %Y"].iter().fold(text.to_owned(), |text, format| {
        text.replace(&RENDERED.strftime(format).to_string(), &today.strftime(format).to_string())
    })
}

#[test]
fn templates_render_as_in_jinja2() {
    let Some(folder) = test_support::templates() else { return };
    let cases = test_support::read_lines(&folder.join("template_cases.jsonl.gz"));
    for (suite, total, min_agreeing, max_differing) in SUITES {
        let cases: Vec<&Value> = cases.iter().filter(|case| case["suite"] == suite).collect();
        assert_eq!(cases.len(), total, "{suite}");
        let (mut agreeing, mut differing) = (0, Vec::new());
        for case in cases {
            let source = case["source"].as_str().unwrap();
            let turns: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let rendered = ChatTemplate::new(source, case["bos_token"].as_str(), case["eos_token"].as_str())
                .and_then(|template| template.render(&turns, case["add_generation_prompt"].as_bool().unwrap()));
            match (rendered.ok(), case["expected"].as_str().map(of_today)) {
                (found, expected) if found == expected => agreeing += 1,
                (Some(_), Some(_)) => differing.push(case["name"].as_str().unwrap()),
                _ => {}
            }
        }
        assert!(agreeing >= min_agreeing, "{suite}: {agreeing} of {total} agree, expected {min_agreeing}");
        assert!(differing.len() <= max_differing, "{suite}: different text: {differing:?}");
    }
}

/// transformers renders the body of these tags, but not the tags themselves; variables set inside stay local.
#[test]
fn generation_tags_leave_only_their_body() {
    let render = |source: &str| ChatTemplate::new(source, None, None).unwrap().render(&conversation(), true).unwrap();
    assert_eq!(render("a {%- generation -%} b {%- endgeneration %} c"), "ab c");
    assert_eq!(render("{% generation %}\nb\n{% endgeneration %}\nc"), "b\nc");
    assert_eq!(render("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}"), "1");
}

#[test]
fn a_refusal_carries_the_templates_words() {
    let source = "{% macro no(m) %}{{ raise_exception('no ' ~ m.role ~ ' here') }}{% endmacro %}{{ no(messages[0]) }}";
    let error = ChatTemplate::new(source, None, None).unwrap().render(&conversation(), true).unwrap_err();
    match &error {
        ChatError::Template { message } => assert_eq!(message, "no system here"),
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("rejects this conversation: no system here"), "{error}");
}

/// Errors in Jinja2 are errors here, distinguished from a refusal, and nothing panics.
#[test]
fn mistakes_in_a_template_are_errors() {
    for source in [
        "{{ nothing.x }}",
        "{{ 'a' + nothing }}",
        "{{ nothing | tojson }}",
        "{{ messages[9].role }}",
        "{{ absent() }}",
        "{{ 'a' + 1 }}",
        "{{ 'a'.absent() }}",
        "{{ messages.append(1) }}",
        "{{ [1] | tojson(indent='x', nothing=1) }}",
        "{{ [1] | tojson(indent=99999999999) }}",
        "{{ 'a'.rsplit('') }}",
    ] {
        let error = ChatTemplate::new(source, None, None).unwrap().render(&conversation(), true).unwrap_err();
        assert!(matches!(error, ChatError::Render { .. }), "{source}: {error:?}");
    }
    for source in ["{% if %}", "{{ 'a", "{% for m in messages %}", "\n\n{% nonsense %}"] {
        let error = ChatTemplate::new(source, None, None).err().unwrap();
        assert!(matches!(error, ChatError::Syntax { .. }), "{source}: {error:?}");
    }
    let error = ChatTemplate::new("\n\n{% nonsense %}", None, None).err().unwrap().to_string();
    assert!(error.contains("chat template:3"), "the line is named: {error}");
}

#[test]
fn the_date_is_todays() {
    let template = ChatTemplate::new("{{ strftime_now('%Y-%m-%d') }}", None, None).unwrap();
    let text = template.render(&[], false).unwrap();
    assert!(text.len() == 10 && text.as_str() > "2025-01-01", "{text}");
}

#[test]
fn the_template_is_found_where_transformers_finds_it() {
    let source = |folder: &Path| from_folder(folder).unwrap().map(|t| t.source().to_string());
    let text = folder(&json!({"chat_template": "from config"}));
    assert_eq!(source(text.path()).as_deref(), Some("from config"));
    std::fs::write(text.path().join("chat_template.jinja"), "from jinja").unwrap();
    assert_eq!(source(text.path()).as_deref(), Some("from jinja"));
    let entry = |name: &str| json!({"name": name, "template": format!("{name} template")});
    let list = folder(&json!({"chat_template": [entry("tool_use"), entry("default")]}));
    assert_eq!(source(list.path()).as_deref(), Some("default template"));
    let error = from_folder(folder(&json!({"chat_template": [entry("rag"), entry("tool_use")]})).path()).err().unwrap();
    assert!(error.to_string().contains("rag, tool_use"), "{error}");
    for wrong in [json!(3), json!([3]), json!([{"name": "default"}])] {
        let error = from_folder(folder(&json!({"chat_template": wrong})).path()).err().unwrap();
        assert!(matches!(error, ChatError::Field { .. }), "{error:?}");
    }
    let broken = folder(&json!({"chat_template": "{% if %}"}));
    let error = from_folder(broken.path()).err().unwrap().to_string();
    assert!(error.contains(broken.path().join("tokenizer_config.json").to_str().unwrap()), "{error}");
}

#[test]
fn a_folders_special_tokens_reach_the_template() {
    let template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}";
    let config = json!({"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": "</s>",
                        "pad_token": "<p>", "unk_token": null, "add_bos_token": true});
    let folder = folder(&config);
    assert_eq!(from_folder(folder.path()).unwrap().unwrap().render(&[], false).unwrap(), "<s></s><p>False");
}

#[test]
fn one_bos_and_only_from_the_post_processor() {
    let turns = messages(&[("user", "hello you")]);
    let ids = |config: Value| {
        let folder = folder(&config);
        let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
        let plain = ["hello you", "<s> hello you"].map(|text| encode_plain(&tokenizer, text).unwrap());
        let chat = ChatTemplate::from_folder(folder.path(), &tokenizer).unwrap().unwrap();
        (plain, tokenizer.encode(&chat.render(&turns, false).unwrap(), false).unwrap())
    };
    let with_bos = "{{ bos_token }} {{ messages[0].content }}";
    let config =
        |template: &str, add: Value| json!({"chat_template": template, "bos_token": "<s>", "add_bos_token": add});
    let (with, without) = (vec![0, 3, 4], vec![3, 4]);
    assert_eq!(ids(config(with_bos, Value::Null)), ([with.clone(), with.clone()], with.clone()));
    let without_bos = "{{ messages[0].content }}";
    assert_eq!(ids(config(without_bos, json!(true))), ([with.clone(), with.clone()], without.clone()));
    // transformers 5 has it from the post-processor of tokenizer.json alone, too
    assert_eq!(ids(config(without_bos, json!(false))), ([with.clone(), with], without));
}

/// The folder of the models.
fn models() -> Option<PathBuf> {
    match std::env::var_os("UQAC_MODELS") {
        Some(folder) => Some(folder.into()),
        None => Some(Path::new(&std::env::var_os("HOME")?).join(".cache/uqac-models")),
    }
}

/// The prompts of the golden responses, from the instruction to the exact token ids.
#[test]
fn golden_prompts_encode_to_their_ids() {
    for (model, golden) in [
        ("smollm2-135m-instruct", "smollm2-135m"),
        ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b"),
        ("gemma-3-270m", "gemma-3-270m"),
    ] {
        let Some(folder) = models().map(|m| m.join(model)).filter(|f| f.join("tokenizer.json").exists()) else {
            test_support::skipped(format_args!("the folder of {model} is not there"));
            continue;
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../shared/golden/uqac_{golden}.jsonl.gz"));
        if !path.exists() {
            test_support::skipped(format_args!("{} is not there", path.display()));
            continue;
        }
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        let template = ChatTemplate::from_folder(&folder, &tokenizer).unwrap().unwrap();
        let lines = std::io::read_to_string(flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())).unwrap();
        for (i, line) in lines.lines().enumerate() {
            let golden: Value = serde_json::from_str(line).unwrap();
            let ids: Vec<u32> = serde_json::from_value(golden["input_ids"].clone()).unwrap();
            let (instruction, generated) =
                (golden["instruction"].as_str().unwrap(), golden["generated"].as_str().unwrap());
            let turns = messages(&[("user", instruction), ("assistant", generated)]);
            let prompt_len = golden["n_instr"].as_u64().unwrap() as usize;
            let encoded = |turns: &[Message], add_generation_prompt| {
                tokenizer.encode(&template.render(turns, add_generation_prompt).unwrap(), false).unwrap()
            };
            assert_eq!(encoded(&turns[..1], true), ids[..prompt_len], "{model}, line {i}");
            assert_eq!(encoded(&turns, false), ids, "{model}, line {i}");
        }
    }
}

/// User-supplied variables: those of the conversation take precedence over those of the model, and both over special
/// tokens.
#[test]
fn arguments_are_variables_of_the_template() {
    let source = "{{ bos_token }}{% if enable_thinking is defined and not enable_thinking %}<no>{% endif %}{{ n }}";
    let mut template = ChatTemplate::new(source, Some("<s>"), None).unwrap();
    let arguments = |value: serde_json::Value| value.as_object().unwrap().clone();
    let render = |template: &ChatTemplate, more: serde_json::Value| {
        template.render_with(&[Message::new("user", "x")], true, &arguments(more)).unwrap()
    };
    assert_eq!(render(&template, serde_json::json!({})), "<s>");
    assert_eq!(render(&template, serde_json::json!({"enable_thinking": false, "n": 3})), "<s><no>3");
    template.arguments = arguments(serde_json::json!({"enable_thinking": false, "bos_token": "", "n": 1}));
    assert_eq!(render(&template, serde_json::json!({"n": 2})), "<no>2");
    assert_eq!(render(&template, serde_json::json!({"enable_thinking": true})), "1");
}
