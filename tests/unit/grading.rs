//! Grading of hand-judged responses, of arbitrary text, and compared with the authors' own labels.

use proptest::prelude::*;
use serde::Deserialize;
use uqac::eval::grading::{correct, label_reference, normal_form, normal_form_for};
use uqac::eval::tasks::Grader::{self, Choice, Exact, Math, Number};
use uqac::eval::tasks::{TaskOptions, load};
use uqac::io::target::Target;
use uqac::uq::answer::find_answer;

/// A response judged by hand: its answer, and whether that is correct.
#[derive(Debug, Deserialize)]
struct Case {
    response: String,
    target: String,
    grader: Grader,
    answer: Option<String>,
    correct: bool,
    note: String,
}

fn cases() -> Vec<Case> {
    let lines = include_str!("../data/grading_cases.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn responses_are_graded_as_by_hand() {
    let cases = cases();
    assert!(cases.len() >= 256, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let found = find_answer(&case.response, case.grader.rule()).map(|span| &case.response[span.bytes]);
        if found != case.answer.as_deref() {
            wrong.push(format!("{}: found {found:?} in {:?}", case.note, case.response));
        }
        let graded = case.answer.as_deref().is_some_and(|answer| correct(answer, &case.target, case.grader));
        if graded != case.correct {
            let forms = [case.answer.as_deref().unwrap_or_default(), &case.target].map(|a| normal_form(a, case.grader));
            wrong.push(format!("{}: {:?} is {forms:?}, {graded}", case.note, case.answer));
        }
    }
    assert!(wrong.is_empty(), "{}\n{} of {}", wrong.join("\n"), wrong.len(), cases.len());
}

#[test]
fn equality_has_two_sides() {
    for case in cases() {
        let Some(answer) = case.answer else { continue };
        assert!(correct(&answer, &answer, case.grader), "{answer:?} is itself");
        assert_eq!(correct(&case.target, &answer, case.grader), case.correct, "{}", case.note);
        if normal_form(&answer, case.grader) == normal_form(&case.target, case.grader) {
            assert!(case.correct, "{}", case.note);
        }
    }
}

/// Answers as passed to the grader; extraction may have dropped parts of a number that are present
/// here.
#[test]
fn numbers_are_no_more_than_they_say() {
    for (answer, target, equal) in [
        ("5 million", "5", false),       // five million is not five
        ("5 million", "5000000", true),  // five million
        ("1-5\\mathrm{i}", "-4", false), // the imaginary unit is not a unit of measure
        ("x != 5", "5", false),          // unequal is not equal
        ("0.\\bar{3}", "0", false),      // a repeating decimal is not zero
        ("7=11a+c", "11", false),        // letters that are not units
        ("5 and a half", "5", false),    // a half more
        ("1 000 000", "1000000", true),  // thousands with spaces
        // signs
        ("- 5", "-5", true),
        ("-{5}", "5", false),
        ("–5", "-5", true),
        ("－5", "-5", true),
        ("\\text{negative }5", "-5", true),
        ("minus five", "-5", true),
        ("-\\frac{10}{2}", "-5", true),
        ("-½", "-0.5", true),
        // more than a number
        ("\\sqrt{16}", "16", false),
        ("\\sqrt{16}", "4", true),
        ("5!", "5", false),
        ("2\\pi", "2", false),
        ("3x", "3", false),
        ("3/x", "3", false),
        ("x^2", "2", false),
        ("\\pm 5", "5", false),
        ("\\ge 5", "5", false),
        ("\\text{at least }5", "5", false),
        ("\\text{not }5", "5", false),
        ("5 \\text{ or } 6", "6", false),
        ("x = 3 or x = 4", "4", false),
        ("a = 3, b = 4", "4", false),
        ("5, as always", "5", true),
        ("15 minutes (0.25 hours)", "15", true),
        // forms
        ("10⁵", "100000", true),
        ("3 X 10^5", "300000", true),
        ("1½", "1.5", true),
        ("\\$1.2M", "1200000", true),
        ("€3.5bn", "3500000000", true),
        ("12 345", "12345", true),
        ("1.234.567", "1234567", true),
        ("₹12,34,567", "1234567", true),
        ("CHF 12’500", "12500", true),
        ("1_000_000", "1000000", true),
        ("5 dozen", "60", true),
        ("two hundred and five", "205", true),
        ("one million two hundred thousand", "1200000", true),
        ("two and a half", "2.5", true),
        ("three quarters", "0.75", true),
        ("five point two", "5.2", true),
        ("twenty fifth", "4", false),
        ("50 per cent", "0.5", true),
        ("\\text{USD } 5", "5", true),
    ] {
        assert_eq!(correct(answer, target, Number), equal, "{answer} and {target}");
    }
}

#[test]
fn units_on_both_sides_count() {
    for (answer, target, equal) in [
        ("30\\text{ cm}", "0.3\\text{ m}", true),
        ("30\\text{ cm}", "30\\text{ m}", false),
        ("30\\text{ cm}", "30", true),
        ("30 cm", "30\\mathrm{~cm}", true),
        ("\\$5", "5\\text{ cents}", false),
        ("\\$5", "500\\text{ cents}", true),
        ("€5", "\\$5", false),
        ("2\\text{ hours}", "120\\text{ min}", true),
        ("2\\text{ hours and }30\\text{ minutes}", "150\\text{ minutes}", true),
        ("5\\text{ m/s}", "18\\text{ km/h}", true),
        ("60\\text{ mph}", "60\\text{ miles per hour}", true),
        ("1\\text{ m}^2", "10000\\text{ square centimeters}", true),
        ("5\\text{ m}^2", "5\\text{ m}", false),
        ("3\\text{ cm}^3", "3\\text{ mL}", true),
        ("5^\\circ\\text{C}", "5^\\circ\\text{F}", false),
        ("5^\\circ", "5\\text{ degrees}", true),
        ("5\\text{ apples}", "5\\text{ pears}", true),
    ] {
        assert_eq!(correct(answer, target, Math), equal, "{answer} and {target}");
    }
}

#[test]
fn a_name_is_no_part_of_its_value() {
    for (answer, target, equal) in [
        ("f^{-1}(x)=\\frac{x-1}{2}", "\\frac{x-1}{2}", true),
        ("P(X=2)=\\frac38", "\\frac38", true),
        ("\\mathbb{E}[X]=5", "5", true),
        ("\\operatorname{Var}(X)=4", "4", true),
        ("\\frac{dy}{dx}=2x", "2x", true),
        ("\\lim_{x\\to0}f(x)=1", "1", true),
        ("\\int_0^1 x\\,dx=\\frac12", "\\frac12", true),
        ("\\gcd(4,6)=2", "2", true),
        ("|A \\cup B|=7", "7", true),
        ("m+n=7", "7", true),
        ("\\frac{a}{b}=2", "2", true),
        ("x_1=2,\\quad x_2=3", "3,2", true),
        ("ab=4", "4", false),
        ("2x+3y=7", "7", false),
        ("a^2+b=0", "0", false),
        ("x(x+1)=6", "6", false),
        ("x_1=2, x_2=3", "x_1=3, x_2=2", false),
    ] {
        assert_eq!(correct(answer, target, Math), equal, "{answer} and {target}");
    }
}

#[test]
fn a_target_may_be_contained() {
    for (answer, target, right) in [
        ("The capital of France is Paris.", "paris", true),
        ("It is New York City, of course", "new york", true),
        ("Parisian", "Paris", false),
        ("1,000", "1000", true),
        ("anything", " ", false),
        ("It is Paris/Lyon.", "Lyon", true),
        ("Paris—a city", "Paris", true),
        ("答えはリヨンです。", "リヨン", true),
        ("它是里昂市", "里昂", true),
        ("수도는 리옹입니다", "리옹", true),
        ("Ｐａｒｉｓ", "Paris", true),
        ("the cafe\u{301} Paris", "café", true),
        ("It is 3.5.", "5", false),
    ] {
        assert_eq!(correct(answer, target, Grader::Contains), right, "{answer} {target}");
    }
}

#[test]
fn an_options_words_stand_for_its_letter() {
    let item = |question: &str| Target::new(question, "(B)", Choice);
    let penguins = item("Who is it?\nOptions:\n(A) Louis\n(B) Bernard, the old\n(C) A cat");
    for (answer, expected) in [
        ("Bernard, the old", true),
        ("\\text{bernard the old}", true),
        ("(B)", true),
        ("B", true),
        ("Louis", false),
        ("A cat", false),
        ("", false),
        ("Bernard", false),
    ] {
        assert_eq!(penguins.accepts(answer), expected, "{answer}");
    }
    assert_eq!(normal_form_for(&penguins, "louis."), "A");
    let said = "Louis is the king of the penguins. Bernard has a beard.";
    let found = find_answer(said, Choice.rule()).map(|found| &said[found.bytes]);
    assert_eq!(found, Some("Louis"), "an option that a sentence begins with");
    let twice = item("Options:\n(A) yes\n(B) yes");
    assert!(!twice.accepts("yes"));
    assert!(!item("no options").accepts("yes"));
    let lengths = Target { question: String::new(), answers: vec!["2 m".into(), "30 cm".into()], grader: Number };
    let right = ["30 cm", "0.3 m", "200 cm", "30 m", "2"].map(|answer| lengths.accepts(answer));
    assert_eq!(right, [true, true, true, false, true], "units count, and any of the answers");
}

#[test]
fn the_authors_labels_are_theirs() {
    let Some(golden) = test_support::golden() else { return };
    let mut compared = 0;
    for model in ["gemma-3-270m", "qwen2.5-coder-0.5b", "smollm2-135m"] {
        for item in test_support::read_lines(&golden.join(format!("uqac_{model}.jsonl.gz"))) {
            let text = |field: &str| item[field].as_str().unwrap();
            let (task, grader) = if text("dataset") == "bbh" { ("bbh:x", Exact) } else { ("gsm8k", Number) };
            let label = item["label"].as_i64() == Some(1);
            let graded = |target: &str| label_reference(text("generated"), target, task, grader) == Some(true);
            assert_eq!(graded(text("reference")), label, "{model} {}", item["id"]);
            let target = text("reference").rsplit("#### ").next().unwrap();
            assert_eq!(graded(target), label, "{model} {}", item["id"]);
            compared += 1;
        }
    }
    assert_eq!(compared, 33);
}

/// Every published answer equals itself, and no number equals the next one.
#[test]
fn published_answers_are_read() {
    let Some(data) = test_support::benchmarks() else { return };
    let options = TaskOptions { data: Some(data), ..TaskOptions::default() };
    let tasks = ["gsm8k", "bbh"].into_iter().flat_map(|spec| load(spec, &options).unwrap());
    let mut counted = 0;
    for (task, item) in tasks.flat_map(|task| task.items.into_iter().map(move |item| (task.name.clone(), item))) {
        assert!(item.target.accepts(item.target.shown()), "{task} {}", item.doc_id);
        let form = normal_form(item.target.shown(), item.target.grader);
        match item.target.grader {
            Number => {
                let value: f64 = item.target.shown().replace(',', "").parse().unwrap();
                assert_eq!(form, value.to_string(), "{task} {}", item.doc_id);
                assert!(!item.target.accepts(&(value + 1.0).to_string()));
            }
            Choice => assert_eq!(format!("({form})"), item.target.shown()),
            Exact | Math | Grader::Contains => assert_eq!(form, item.target.shown().to_lowercase()),
        }
        counted += 1;
    }
    assert_eq!(counted, 660 + 800);
}

/// Derived by hand from the authors' rules: the response, the target, the label.
const REFERENCE: &[(&str, &str, &str, Option<bool>)] = &[
    ("gsm8k", "so 2160", "2160", Some(false)), // digits are split into threes: the last number is 0
    ("gsm8k", "so 2,160", "2160", Some(true)),
    ("gsm8k", "\\boxed{2160}", "2160", Some(false)),
    ("gsm8k", "so -5", "5", Some(true)), // no sign
    ("gsm8k", "so 50%", "0.5", Some(true)),
    ("gsm8k", "so 50%", "50", Some(false)),
    ("gsm8k", "$18.00\n", "18", Some(true)),
    ("gsm8k", "\\boxed{18}\nDone.", "18", Some(true)), // the last line has no number: the box counts
    ("gsm8k", "\\boxed{2160}\nDone.", "2160", Some(true)),
    ("gsm8k", "\\boxed{x}\nDone.", "18", Some(false)),
    ("gsm8k", "18\nDone.", "18", None),
    ("gsm8k", "", "18", None),
    ("bbh:navigate", "\\boxed{(b)}", "(B)", Some(true)),
    ("bbh:navigate", "\\boxed{B}", "(B)", Some(true)),
    ("bbh:navigate", "\\boxed{ B }", "(B)", Some(false)), // spaces matter
    ("bbh:navigate", "\\boxed{\\text{yes}}", "yes", Some(false)),
    ("bbh:navigate", "So the answer is yes.", "yes", None),
    ("bbh:object_counting", "\\boxed{7} of 8", "7", Some(true)),
    ("math", "\\boxed{\\dfrac{1}{2}}", "\\frac12", Some(true)),
    ("math", "\\boxed{\\frac12}", "0.5", Some(true)),
    ("math", "\\boxed{0.25}", "\\frac14", Some(false)), // of decimals, only a half
    ("math", "\\boxed{1/3}", "so \\boxed{\\frac{1}{3}}", Some(true)),
    ("math", "\\boxed{x/3}", "\\frac{x}{3}", Some(false)),
    ("math", "\\boxed{5\\text{ cm}}", "5", Some(true)),
    ("math", "\\boxed{5\\text{cm}}", "5", Some(false)),
    ("math", "\\boxed{5 \\text{ a} \\text{ b}}", "5", Some(false)), // their rule fails: compared verbatim
    ("math", "\\boxed{k = 5}", "5", Some(true)),
    ("math", "\\boxed{abc=5}", "5", Some(false)),
    ("math", "\\boxed{90^\\circ}", "90", Some(true)),
    ("math", "\\boxed{\\sqrt3}", "\\sqrt{3}", Some(true)),
    ("math", "\\boxed{ .5}", "\\frac{1}{2}", Some(true)),
    ("math", "\\boxed{50\\%}", "50", Some(true)),
    ("math", "\\boxed{\\left( 1, 2 \\right)}", "(1,2)", Some(true)),
    ("math", "\\boxed{\\frac}", "\\frac", Some(true)), // their rule fails on both
    ("math", "no box", "1", None),
];

#[test]
fn the_authors_rules_are_kept() {
    for (task, response, target, expected) in REFERENCE {
        let found = label_reference(response, target, task, Exact);
        assert_eq!(found, *expected, "{task}: {response:?} against {target:?}");
    }
    // Items from a file are graded by their grader.
    for (grader, expected) in [(Number, Some(true)), (Math, Some(false)), (Choice, Some(false)), (Exact, Some(false))] {
        assert_eq!(label_reference("\\boxed{7.0}", "7", "quiz", grader), expected, "{grader:?}");
    }
}

/// Strings built from typical parts of answers, with arbitrary text in between.
fn answers() -> impl Strategy<Value = String> {
    let pieces = vec![
        "\\frac",
        "\\frac{1}{2}",
        "\\sqrt",
        "\\sqrt[3]",
        "{",
        "}",
        "\\{",
        "\\}",
        "(",
        ")",
        "[",
        "]",
        "|",
        "\\left",
        "\\right",
        "\\text{",
        "\\text{ and }",
        " or ",
        ",",
        ";",
        ":",
        "=",
        "<",
        "\\le ",
        ">",
        "\\cup ",
        "\\in ",
        "\\pm ",
        "\\infty",
        "\\pi",
        "\\cdot ",
        "\\times ",
        "/",
        "+",
        "-",
        "−",
        "^",
        "_",
        "!",
        "1",
        "23",
        "456",
        "0",
        "99999999999",
        "0.5",
        ".",
        "\\overline{3}",
        "e5",
        "e-999",
        "x",
        "y",
        "abc",
        "cm",
        "\\%",
        "%",
        "$",
        "^\\circ",
        " ",
        "\\,",
        "\\!",
        "{,}",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "&",
        "\\\\",
        "\\log_",
        "\\sin ",
        "\\binom",
        "\\alpha ",
        "\\",
        "é",
        "🙂",
        "½",
        "minus ",
        "_",
        "m",
        "⁵",
        " million",
        " and a half",
        "√",
        "２",
        "\u{a0}",
        "\n",
        "yes",
        "(B)",
        "A.",
        "Option ",
        "twenty",
        "-three",
        "\\boxed{",
        "#### ",
        "i128",
        "170141183460469231731687303715884105727",
        "\\lfloor ",
        "\\rfloor",
        "'",
        "\"",
        "**",
        "\u{1c}",
    ];
    let piece = prop_oneof![12 => prop::sample::select(pieces).prop_map(String::from), 1 => any::<String>()];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if test_support::long_tests() { 3000 } else { 800 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_answers_can_be_compared(a in answers(), b in answers()) {
        for grader in [Number, Math, Choice, Exact] {
            prop_assert!(correct(&a, &a, grader), "{:?} is itself", a);
            prop_assert_eq!(correct(&a, &b, grader), correct(&b, &a, grader));
            // units are no part of the form, but two of them may differ
            let has_unit = |text: &str| ["m", "$", "°", "\\circ"].iter().any(|unit| text.contains(unit));
            if normal_form(&a, grader) == normal_form(&b, grader) && !(has_unit(&a) && has_unit(&b)) {
                prop_assert!(correct(&a, &b, grader));
            }
        }
        for task in ["gsm8k", "math", "bbh", "quiz"] {
            let _ = label_reference(&a, &b, task, Math); // no panic
        }
    }

    #[test]
    fn equal_numbers_are_equal(value in -10_000_000_i64..10_000_000, divisor in 1_i64..5000) {
        let grouped = |value: u64| {
            let digits = value.to_string();
            let first = digits.len() % 3;
            let groups: Vec<&str> = std::iter::once(&digits[..first]).filter(|group| !group.is_empty())
                .chain((first..digits.len()).step_by(3).map(|at| &digits[at..at + 3])).collect();
            groups.join(",")
        };
        let sign = if value < 0 { "-" } else { "" };
        let target = value.to_string();
        for same in [format!("{value}.0"), format!("{sign}{}", grouped(value.unsigned_abs())), format!("${value}$"),
            format!("{value} dollars"), format!("x = {value}"), format!("\\frac{{{}}}{{{divisor}}}", value * divisor),
            format!("{value}\\text{{ cm}}"), format!("{}/{divisor}", value * divisor)] {
            for grader in [Number, Math] {
                prop_assert!(correct(&same, &target, grader), "{:?} {} {}", grader, same, target);
                prop_assert!(!correct(&same, &(value + 1).to_string(), grader), "{:?} {}", grader, same);
            }
        }
    }
}

#[test]
fn long_repetitions_do_not_stall() {
    for piece in [
        "{", "(", "\\frac", "\\sqrt", "-", "^", "1,", "(x+1)", "|", "\\text{", "sin ", "\\{", "=", "±", "^-", "x_", "[",
    ] {
        for length in [1900, 100_000] {
            let text = piece.repeat(length / piece.len());
            for grader in [Number, Math, Choice, Exact] {
                assert!(correct(&text, &text, grader), "{piece}");
            }
        }
    }
}
