//! Benchmarks read in their publishers' formats: the shared data, and small files of every layout.

use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use uqac::eval::tasks::{BoxedInstruction, Grader, Task, TaskError, TaskOptions, load};
use uqac::uq::answer::AnswerRule;

fn options(data: &Path) -> TaskOptions {
    TaskOptions { data: Some(data.to_path_buf()), ..TaskOptions::default() }
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

/// The only task of a specification.
fn one(spec: &str, options: &TaskOptions) -> Task {
    let mut tasks = load(spec, options).unwrap();
    assert_eq!(tasks.len(), 1, "{spec}");
    tasks.remove(0)
}

/// The error message for a task that cannot be read.
fn message(spec: &str, data: &Path) -> String {
    load(spec, &options(data)).unwrap_err().to_string()
}

fn prompt(task: &Task, doc_id: usize) -> &str {
    &task.items[doc_id].prompt
}

#[test]
fn gsm8k_is_read() {
    let Some(data) = test_support::benchmarks() else { return };
    let task = one("gsm8k", &options(&data));
    assert_eq!((task.name.as_str(), task.rule, task.items.len()), ("gsm8k", Some(AnswerRule::Number), 660));
    assert!(task.items.iter().enumerate().all(|(i, item)| item.doc_id == i && item.target.grader == Grader::Number));
    assert_eq!((task.items[0].target.shown(), task.items[2].target.shown()), ("18", "70000"));
    assert_eq!(prompt(&task, 1), task.items[1].doc["question"].as_str().unwrap());
    assert!(task.items.iter().all(|item| item.target.shown().chars().all(|c| c.is_ascii_digit() || ",.-".contains(c))));
}

#[test]
fn bbh_is_read() {
    let Some(data) = test_support::benchmarks() else { return };
    let tasks = load("bbh", &options(&data)).unwrap();
    let shown: Vec<(&str, Grader, usize)> =
        tasks.iter().map(|task| (task.name.as_str(), task.items[0].target.grader, task.items.len())).collect();
    let expected = [
        ("bbh:boolean_expressions", Grader::Exact, 100),
        ("bbh:date_understanding", Grader::Choice, 100),
        ("bbh:multistep_arithmetic_two", Grader::Number, 100),
        ("bbh:navigate", Grader::Exact, 100),
        ("bbh:object_counting", Grader::Number, 100),
        ("bbh:penguins_in_a_table", Grader::Choice, 100),
        ("bbh:sports_understanding", Grader::Exact, 100),
        ("bbh:web_of_lies", Grader::Exact, 100),
    ];
    assert_eq!(shown, expected);
    for task in &tasks {
        assert_eq!(task.rule, Some(AnswerRule::Boxed));
        assert!(task.items.iter().all(|item| item.target.grader == task.items[0].target.grader), "{}", task.name);
        let text = prompt(task, 0);
        let question = task.items[0].doc["input"].as_str().unwrap();
        assert!(text.ends_with(&format!("\n\nQUESTION\n------\nQ: {question}")), "{text}");
        assert_eq!(text.matches("So the answer is \\boxed{").count(), 3, "{text}");
        assert_eq!(text.matches("\nQ: ").count(), 4, "{text}");
        assert!(!text.contains("canary") && text.contains(" Put your final answer in `\\boxed{ }`.\n\nEXAMPLES\n"));
    }
    let boxed = |i: usize| -> Vec<&str> {
        let after = prompt(&tasks[i], 0).split("So the answer is \\boxed{").skip(1);
        after.map(|rest| rest.split_once("}.").unwrap().0).collect()
    };
    assert_eq!(boxed(0), ["False", "False", "True"]);
    assert_eq!(boxed(1), ["(D)", "(B)", "(B)"]);
    assert_eq!(boxed(2), ["123", "3929", "-219"]);
    assert_eq!(boxed(3), ["No", "No", "Yes"]);
    assert_eq!(boxed(4), ["6", "11", "8"]);
    assert_eq!(boxed(5), ["(B)", "(B)", "(D)"]);
    assert_eq!(boxed(6), ["yes", "no", "yes"]);
    assert_eq!(boxed(7), ["Yes", "Yes", "No"]);
    assert_eq!(one("bbh:navigate", &options(&data)).items, tasks[3].items);
    let error = message("bbh:navigation", &data);
    assert!(error.contains("\"navigation\"") && error.contains("navigate, object_counting"), "{error}");
}

#[test]
fn prompts_are_the_papers() {
    let (Some(data), Some(golden)) = (test_support::benchmarks(), test_support::golden()) else { return };
    let (gsm8k, bbh) = (one("gsm8k", &options(&data)), one("bbh:boolean_expressions", &options(&data)));
    let mut compared = 0;
    for model in ["gemma-3-270m", "qwen2.5-coder-0.5b", "smollm2-135m"] {
        for item in test_support::read_lines(&golden.join(format!("uqac_{model}.jsonl.gz"))) {
            let (dataset, number) = (item["dataset"].as_str().unwrap(), item["id"].as_str().unwrap());
            let number: usize = number.rsplit('.').next().unwrap().parse().unwrap();
            let task = if dataset == "bbh" { &bbh } else { &gsm8k };
            if number < task.items.len() {
                assert_eq!(prompt(task, number), item["instruction"].as_str().unwrap(), "{dataset} {number}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 10, "{compared}");
}

fn problem(number: u32, answer: &str) -> Value {
    let solution = format!("We see $\\boxed{{0}}$, no: $\\boxed{{{answer}}}$.");
    json!({"problem": format!(" What is {number}? "), "level": "Level 1", "type": "Algebra", "solution": solution})
}

#[test]
fn math_is_read_as_a_folder_and_as_lines() {
    let (second, tenth, other) = (problem(2, "\\frac{1}{2}"), problem(10, "x^{2}"), problem(1, "7"));
    let (second, tenth, other) = (second.to_string(), tenth.to_string(), other.to_string());
    let algebra = [("MATH/test/algebra/10.json", tenth.as_str()), ("MATH/test/algebra/2.json", second.as_str())];
    let rest = [("MATH/test/zeta/1.json", other.as_str()), ("MATH/train/algebra/1.json", "{}")];
    let data = folder(&[algebra, rest].concat());
    for folder in [data.path().to_path_buf(), data.path().join("MATH")] {
        let task = one("math", &options(&folder));
        let targets: Vec<&str> = task.items.iter().map(|item| item.target.shown()).collect();
        assert_eq!(targets, ["\\frac{1}{2}", "x^{2}", "7"]);
        assert_eq!((task.rule, task.items[2].target.grader), (Some(AnswerRule::Boxed), Grader::Math));
        assert_eq!(prompt(&task, 0), " What is 2? ");
    }
    let boxed = TaskOptions { boxed_instruction: BoxedInstruction::Math, ..options(data.path()) };
    assert_eq!(prompt(&one("math", &boxed), 0), "What is 2?\n\nPut your final answer in `\\boxed{ }`.");

    let mut line = problem(3, "(3, \\frac{\\pi}{2})");
    line["answer"] = json!("\\left( 3, \\frac{\\pi}{2} \\right)");
    line["subject"] = json!("Precalculus");
    let line = line.to_string();
    for name in ["math500/test.jsonl", "MATH-500/test.jsonl", "math_500.jsonl", "test.jsonl"] {
        let data = folder(&[(name, &line)]);
        let task = one("math", &options(data.path()));
        assert_eq!(task.items[0].target.shown(), "\\left( 3, \\frac{\\pi}{2} \\right)", "{name}");
        assert!(task.source.ends_with(name));
        assert_eq!(one("math", &options(&task.source)).items, task.items);
    }
}

#[test]
fn an_instruction_that_is_asked_for_is_gsm8ks_too() {
    let line = json!({"question": " Two and two? ", "answer": "4\n#### 4"}).to_string();
    let data = folder(&[("gsm8k.jsonl", &line)]);
    let asked = |boxed_instruction| {
        let options = TaskOptions { boxed_instruction, ..options(data.path()) };
        prompt(&one("gsm8k", &options), 0).to_owned()
    };
    assert_eq!(asked(BoxedInstruction::None), " Two and two? ");
    // Gemma's default, as published: only for MATH
    assert_eq!(asked(BoxedInstruction::Math), " Two and two? ");
    assert_eq!(asked(BoxedInstruction::All), "Two and two?\n\nPut your final answer in `\\boxed{ }`.");
    for (instruction, written) in [
        (BoxedInstruction::None, json!(false)),
        (BoxedInstruction::Math, json!(true)),
        (BoxedInstruction::All, json!("all")),
    ] {
        assert_eq!(serde_json::to_value(instruction).unwrap(), written);
        assert_eq!(serde_json::from_value::<BoxedInstruction>(written).unwrap(), instruction);
    }
    assert!(serde_json::from_value::<BoxedInstruction>(json!("math")).is_err());
}

/// The limits of the authors' scripts: 1,024 tokens, 1,536 for BBH, and 1,536 for MATH too with a model that thinks at
/// length.
#[test]
fn responses_end_where_they_did_when_published() {
    let gsm8k = json!({"question": "q", "answer": "#### 1"}).to_string();
    let (math, own) =
        (problem(1, "7").to_string(), json!({"question": "q", "answer": 1, "grader": "number"}).to_string());
    let bbh = json!({"examples": [{"input": "a", "target": "b"}]}).to_string();
    let data = folder(&[
        ("gsm8k.jsonl", &gsm8k),
        ("math_500.jsonl", &math),
        ("own.jsonl", &own),
        ("bbh/a.json", &bbh),
        ("cot-prompts/a.txt", "Do.\n\nQ: a\nA: So the answer is b.\n"),
    ]);
    let own = data.path().join("own.jsonl").display().to_string();
    let limits = |options: TaskOptions| {
        let options = TaskOptions { data: Some(data.path().to_path_buf()), ..options };
        ["gsm8k", "math", "bbh", &own].map(|spec| {
            let task = one(spec, &options);
            (task.max_tokens, task.stop.len())
        })
    };
    assert_eq!(limits(TaskOptions::default()), [(1024, 0), (1024, 0), (1536, 2), (1024, 0)]);
    let thinking = TaskOptions { thinking: true, ..TaskOptions::default() };
    assert_eq!(limits(thinking), [(1024, 0), (1536, 0), (1536, 2), (1024, 0)]);
    let given = TaskOptions { max_tokens: Some(7), stop: Some(vec!["x".into()]), ..TaskOptions::default() };
    assert_eq!(limits(given), [(7, 1); 4]);
}

#[test]
fn abacus_is_read() {
    let line = json!({"question": "3 + 4?", "answer": 7, "steps": 2, "template": "sum", "held_out": false}).to_string();
    for name in ["models/abacus/test.jsonl", "abacus/test.jsonl", "abacus_test.jsonl", "test.jsonl"] {
        let data = folder(&[(name, &line)]);
        let task = one("abacus", &options(data.path()));
        assert_eq!((task.name.as_str(), task.rule), ("abacus", Some(AnswerRule::Number)));
        assert_eq!((prompt(&task, 0), task.items[0].target.shown()), ("3 + 4?", "7"));
        assert_eq!(task.items[0].doc["template"], "sum");
    }
}

#[test]
fn files_of_ones_own_are_read() {
    let lines = [
        json!({"question": "2 + 2?", "answer": 4, "grader": "number", "id": "a"}).to_string(),
        String::new(),
        json!({"question": "Sky?", "answer": "blue", "grader": "exact"}).to_string(),
        json!({"question": "(A) a (B) b", "answer": "B", "grader": "choice"}).to_string(),
        json!({"question": "Half?", "answer": "\\frac12", "grader": "math"}).to_string(),
    ];
    let text = format!("\u{feff}{}\r\n", lines.join("\r\n"));
    let data = folder(&[("my.quiz.jsonl", &text), ("sums.jsonl", &lines[0])]);
    let spec = |name: &str| data.path().join(name).display().to_string();
    let task = one(&spec("my.quiz.jsonl"), &TaskOptions::default());
    assert_eq!((task.name.as_str(), task.rule), ("my.quiz", None));
    let graders: Vec<Grader> = task.items.iter().map(|item| item.target.grader).collect();
    assert_eq!(graders, [Grader::Number, Grader::Exact, Grader::Choice, Grader::Math]);
    assert_eq!((task.items[0].target.shown(), task.items[0].doc["id"].as_str()), ("4", Some("a")));
    assert_eq!(one(&spec("sums.jsonl"), &TaskOptions::default()).rule, None);
}

#[test]
fn compressed_files_are_read() {
    use std::io::Write;
    let data = folder(&[]);
    let file = std::fs::File::create(data.path().join("gsm8k.jsonl.gz")).unwrap();
    let mut file = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    file.write_all(json!({"question": "q", "answer": "a\n#### 1,000"}).to_string().as_bytes()).unwrap();
    file.finish().unwrap();
    assert_eq!(one("gsm8k", &options(data.path())).items[0].target.shown(), "1,000");
    let path = data.path().join("gsm8k.jsonl.gz");
    let packed = std::fs::read(&path).unwrap();
    std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
    assert!(message("gsm8k", data.path()).contains("gsm8k.jsonl.gz: cannot read line 1"));
    std::fs::write(&path, "no gzip").unwrap();
    assert!(message("gsm8k", data.path()).contains("gsm8k.jsonl.gz, line 1: not valid JSON"));
}

#[test]
fn bad_lines_are_named() {
    let good = json!({"question": "q", "answer": "#### 1"}).to_string();
    let bad = |line: &str| {
        let data = folder(&[("gsm8k.jsonl", &format!("{good}\n\n{line}\n"))]);
        message("gsm8k", data.path())
    };
    for (line, expected) in [
        ("{\"question\": \"q\"", "gsm8k.jsonl, line 3: not valid JSON"),
        ("[]", "line 3: field \"question\": expected a text that is not empty, found nothing"),
        ("{\"question\": 5}", "line 3: field \"question\": expected a text that is not empty, found 5"),
        ("{\"question\": \" \"}", "found \" \""),
        (
            "{\"question\": \"q\", \"answer\": \"5\"}",
            "field \"answer\": expected a text that ends in \"#### N\", found 5",
        ),
        ("{\"question\": \"q\", \"answer\": \"5 #### \"}", "field \"answer\""),
    ] {
        let error = bad(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
    let long = json!({"question": "q", "answer": "é".repeat(5000)}).to_string();
    assert!(bad(&long).len() < 400);
}

#[test]
fn other_bad_files_are_named() {
    let no_box = json!({"problem": "p", "solution": "so \\boxed{}"}).to_string();
    let data = folder(&[("math.jsonl", no_box.as_str())]);
    assert!(message("math", data.path()).contains("field \"solution\""));

    let data = folder(&[("own.jsonl", "{\"question\": \"q\", \"answer\": \"a\", \"grader\": \"fuzzy\"}")]);
    let spec = data.path().join("own.jsonl").display().to_string();
    assert!(message(&spec, data.path()).contains("expected number, math, choice, exact or contains, found fuzzy"));
    assert!(message(&format!("{spec}.jsonl"), data.path()).contains("(os error 2)"));

    let data = folder(&[("gsm8k.jsonl", "\n \n")]);
    assert!(matches!(load("gsm8k", &options(data.path())), Err(TaskError::Empty { .. })));
    std::fs::write(data.path().join("gsm8k.jsonl"), [0xff, 0xfe, b'{']).unwrap();
    assert!(message("gsm8k", data.path()).contains("gsm8k.jsonl, line 1: not valid JSON"));

    for (text, expected) in [
        ("{}", "field \"examples\": expected a list of objects, found nothing"),
        ("{\"examples\": [{\"input\": \"a\", \"target\": 1}]}", "a.json, example 0: field \"target\""),
        ("{\n\"examples\": [\n", "a.json, line 3: not valid JSON"),
    ] {
        let data = folder(&[("bbh/a.json", text), ("cot-prompts/a.txt", "Do.\n\nQ: a\nA: So the answer is b.\n")]);
        assert!(message("bbh", data.path()).contains(expected), "{}", message("bbh", data.path()));
    }
    let question = "{\"examples\": [{\"input\": \"a\", \"target\": \"b\"}]}";
    let data = folder(&[("bbh/a.json", question), ("cot-prompts/b.txt", "")]);
    assert!(message("bbh:a", data.path()).contains("cot-prompts/a.txt"));
    let data = folder(&[("bbh/a.json", question), ("cot-prompts/a.txt", "Do.\n\nQ: a\nA: b\n")]);
    assert!(message("bbh:a", data.path()).contains("found 1 questions and 0 answers"));
}

#[test]
fn missing_data_come_with_a_command() {
    let data = folder(&[]);
    for (spec, command) in [
        ("gsm8k", "python -m uqac.tasks gsm8k -o gsm8k.jsonl"),
        ("math", "uqac.tasks math-500"),
        ("bbh", "uqac.tasks bbh:NAME"),
    ] {
        let error = message(spec, data.path());
        assert!(error.contains(command) && error.contains(&data.path().display().to_string()), "{error}");
    }
    for spec in ["", "gsm8k:", "GSM8K", "gsm8k:x", "bbh:", "mmlu", "quiz.json"] {
        let error = load(spec, &options(data.path())).unwrap_err();
        assert!(matches!(error, TaskError::Unknown { .. }), "{spec}: {error}");
    }
}

/// The first questions serve as examples, with worked solutions if the publisher has them; each is wrapped in a
/// template.
#[test]
fn examples_come_before_the_other_questions() {
    let lines = [
        r#"{"question": "1+1?", "answer": "one and one <<1+1=2>>is 2\n#### 2"}"#,
        r#"{"question": "2+2?", "answer": "four #### 4"}"#,
        r#"{"question": "3+3?", "answer": "six #### 6"}"#,
    ];
    let data = folder(&[("gsm8k/test.jsonl", &lines.join("\n")), ("mine.jsonl", &lines[..2].join("\n"))]);
    let shots = |shots, template: Option<&str>| TaskOptions {
        shots,
        prompt_template: template.map(str::to_owned),
        ..options(data.path())
    };
    let task = one("gsm8k", &shots(1, None));
    let prompts: Vec<(usize, &str)> = task.items.iter().map(|item| (item.doc_id, item.prompt.as_str())).collect();
    let example = "1+1?\none and one is 2\n#### 2\n\n";
    assert_eq!(prompts, [(1, format!("{example}2+2?").as_str()), (2, format!("{example}3+3?").as_str())]);
    let task = one("gsm8k", &shots(0, Some("Q: {question}\nA:")));
    assert_eq!(prompt(&task, 0), "Q: 1+1?\nA:");
    let mine = folder(&[(
        "mine.jsonl",
        "{\"question\": \"1+1?\", \"answer\": 2, \"grader\": \"number\"}\n{\"question\": \"2+2?\", \"answer\": 4, \"grader\": \"number\"}",
    )]);
    let path = mine.path().join("mine.jsonl");
    let task = one(path.to_str().unwrap(), &shots(1, Some("Q: {question}\nA:")));
    assert_eq!(prompt(&task, 0), "Q: 1+1?\nA: The answer is 2.\n\nQ: 2+2?\nA:");
    let message = load("gsm8k", &shots(3, None)).unwrap_err().to_string();
    assert_eq!(message, "gsm8k: --shots 3: expected fewer than its 3 questions");
}
