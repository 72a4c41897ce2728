//! Answer extraction on handwritten responses, on arbitrary text, and against the authors' own
//! code.

use flate2::read::GzDecoder;
use proptest::prelude::*;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;
use uqac::engine::encode::ResponseText;
use uqac::model::demo;
use uqac::uq::answer::AnswerForm::{Boxed as InBox, Number as AsNumber, Phrase};
use uqac::uq::answer::AnswerRule::{self, Auto, Boxed, Number};
use uqac::uq::answer::{AnswerForm, find_answer, find_answer_reference, tokens_of_span, tokens_of_span_reference};
use uqac::{DeviceChoice, Engine, EngineOptions};

/// A text with its answer between `⟦` and `⟧`: returns the text without them, and the answer's byte
/// range.
fn unmark(marked: &str) -> (String, Option<Range<usize>>) {
    let text = marked.replace(['⟦', '⟧'], "");
    let open = "⟦".len();
    let span = marked.find('⟦').zip(marked.find('⟧')).map(|(start, end)| start..end - open);
    (text, span)
}

const NUMBERS: &[(AnswerForm, &str)] = &[
    // boxes
    (InBox, r"so \boxed{⟦42⟧}."),
    (InBox, r"\boxed{\$⟦1,234⟧}"),
    (InBox, r"\boxed{$⟦18⟧}"),
    (InBox, r"\boxed{⟦-7⟧} and 12 more"),
    (InBox, r"\boxed{x = ⟦5⟧}"),
    (InBox, r"\boxed{⟦5⟧ \text{ apples}}"),
    (InBox, r"\boxed{⟦25⟧\%}"),
    (InBox, r"\boxed{⟦30⟧^\circ}"),
    (InBox, r"\boxed{1} then \boxed{⟦2⟧}"),
    (InBox, r"\boxed{⟦2160⟧}"),
    (InBox, r"\boxed{⟦\frac{3}{4}⟧}"),
    (InBox, r"\boxed{⟦3, 4⟧}"),
    (InBox, r"\boxed{ ⟦\text{five}⟧ }"),
    (InBox, r"\boxed{\text{Answer: } ⟦5⟧}"),
    (InBox, r"\boxed{⟦x_2⟧}"),
    (InBox, r"\fbox{⟦9⟧} of 10"),
    (InBox, r"put it into \boxed{}: \boxed{⟦8⟧} \boxed{}"),
    // what a box's number stands in
    (InBox, r"\boxed{⟦- 5⟧}"),
    (InBox, r"\boxed{⟦-{5}⟧}"),
    (InBox, r"\boxed{⟦–5⟧}"),
    (InBox, r"\boxed{⟦-\sqrt{4}⟧}"),
    (InBox, r"\boxed{⟦\sqrt{16}⟧}"),
    (InBox, r"\boxed{⟦2\pi⟧}"),
    (InBox, r"\boxed{⟦\pm 5⟧}"),
    (InBox, r"\boxed{⟦a = 3, b = 4⟧}"),
    (InBox, r"\boxed{⟦5 \text{ dozen}⟧}"),
    (InBox, r"\boxed{⟦\text{negative }5⟧}"),
    (InBox, r"\boxed{3 + 4 = ⟦7⟧}"),
    // phrases
    (Phrase, "2 + 2 = 4. The answer is ⟦4⟧. I checked it 3 times."),
    (Phrase, "The answer is $⟦3.50⟧."),
    (Phrase, "the answer is ⟦3.50⟧.\nDone in 2 steps."),
    (Phrase, "The final answer: ⟦12⟧ apples, bought in 3 shops"),
    (Phrase, "**Final Answer:** ⟦7⟧\n\nChecked 2 times"),
    (Phrase, "**Answer**: **⟦7⟧** (see step 2)"),
    (Phrase, "Final answer: $\\frac{1}{2} + \\frac{1}{4} = ⟦\\frac{3}{4}⟧$. Step 9"),
    (Phrase, "ANSWER: ⟦-3⟧\n4"),
    (Phrase, "She pays 5. #### ⟦5⟧"),
    (Phrase, "blah 3\n#### ⟦72⟧"),
    (Phrase, "blah 3\n#### ⟦1,072⟧\nQ: next 5"),
    (Phrase, "#### $⟦10⟧\nand 3 more"),
    (Phrase, "#### 2\nThe answer is: ⟦3⟧"),
    (Phrase, "The answer is 48 + 24 = ⟦72⟧."),
    (Phrase, "The answer is ⟦20⟧, because 4 * 5"),
    (Phrase, "The answer is ⟦3 or 4⟧"),
    (Phrase, "The answer is ⟦5⟧. I hope this answer is helpful in 2024"),
    (Phrase, "The answer is ⟦5⟧. The answer is clear."),
    (Phrase, "Answer (in dollars): ⟦60⟧, paid by 5"),
    (Phrase, "The answer to question 3 is ⟦11⟧"),
    (Phrase, "### Final Answer\n⟦16⟧\n\nThat took 4 steps"),
    (Phrase, "Answer:\n\n⟦42⟧\nfrom 6 and 7"),
    (Phrase, "The answer is approx. ⟦3.2⟧. 5"),
    (Phrase, "The answer is \"⟦5⟧.\" 6"),
    (Phrase, "The answer would be 8 for ⟦2⟧"),
    (Phrase, "The answer is \\[ x = ⟦6⟧ \\]. Check 7."),
    // last numbers
    (AsNumber, "⟦2160⟧"),
    (AsNumber, "so it is ⟦3.50⟧."),
    (AsNumber, "it is ⟦3⟧. "),
    (AsNumber, "it costs $⟦1,234.56⟧!"),
    (AsNumber, r"it costs \$⟦15⟧ in all"),
    (AsNumber, "¥⟦300⟧"),
    (AsNumber, "about ⟦12.5⟧%"),
    (AsNumber, "about ⟦25⟧\\%"),
    (AsNumber, "x = ⟦-5⟧"),
    (AsNumber, "x = ⟦−5⟧ exactly"),
    (AsNumber, "x = (⟦-5⟧)"),
    (AsNumber, "5 or $⟦-3⟧"),
    (AsNumber, "5 or ⟦-$3⟧"),
    (AsNumber, "⟦+4⟧ degrees"),
    (AsNumber, "pages 3-⟦4⟧"),
    (AsNumber, "x-⟦4⟧"),
    (AsNumber, "(x)-⟦4⟧"),
    (AsNumber, "5%-⟦10⟧%"),
    (AsNumber, "$3$-$⟦5⟧$"),
    (AsNumber, "8 - ⟦5⟧"),
    (AsNumber, "the pair 1,⟦2⟧"),
    (AsNumber, "⟦1,234,567⟧"),
    (AsNumber, "1,234,⟦5678⟧"),
    (AsNumber, "1,⟦23⟧"),
    (AsNumber, "0,⟦123⟧"),
    (AsNumber, "1234,⟦567⟧"),
    (AsNumber, "⟦10{,}000⟧ people"),
    (AsNumber, r"⟦12\,500⟧ people"),
    (AsNumber, r"⟦12,\!500⟧ people"),
    (AsNumber, "p = ⟦.5⟧"),
    (AsNumber, "p = ⟦-.5⟧"),
    (AsNumber, "see fig.⟦5⟧"),
    (AsNumber, "⟦3/4⟧ of it"),
    (AsNumber, "⟦2 1/2⟧ cups"),
    (AsNumber, "day 3 ⟦5/2⟧"),
    (AsNumber, r"$⟦2\frac{1}{2}⟧$"),
    (AsNumber, r"$⟦-\frac{3}{4}⟧$"),
    (AsNumber, r"$x = ⟦\frac12⟧$"),
    (AsNumber, "at ⟦3:30 pm⟧"),
    (AsNumber, "on ⟦05/01/2021⟧"),
    (AsNumber, "⟦1e5⟧ cells"),
    (AsNumber, "⟦6.02e-23⟧"),
    (AsNumber, r"⟦3 \times 10^{5}⟧ m"),
    (AsNumber, "⟦3×10⁵⟧ m"),
    (AsNumber, "⟦2^{10}⟧ bytes"),
    (AsNumber, "⟦5⟧ m^2"),
    (AsNumber, "⟦7⟧ of x_1 and x_{2}"),
    (AsNumber, "⟦7⟧ of H2O"),
    (AsNumber, "⟦7⟧ says GPT-4"),
    (AsNumber, "only x⟦2⟧"),
    (AsNumber, "⟦12⟧ on the 3rd day"),
    (AsNumber, "⟦12⟧ with version 1.2.3"),
    (AsNumber, "1. Buy ⟦12⟧ eggs\n2. Cook them"),
    (AsNumber, "⟦5⟧kg"),
    (AsNumber, "it makes ⟦7⟧\nand that is all\n"),
    (Phrase, "答案是⟦42⟧。"),
    (AsNumber, "它是⟦-5⟧。"),
    (AsNumber, "⟦１２⟧個"),
    (Phrase, "**⟦-5⟧**"),
    // signs, groups and what a number stands in
    (AsNumber, "it fell by ⟦–5⟧ degrees"),
    (AsNumber, "it is ⟦－5⟧"),
    (AsNumber, "it fell to ⟦minus 5⟧"),
    (AsNumber, "10 minus ⟦5⟧"),
    (AsNumber, "₹⟦12,34,567⟧"),
    (AsNumber, "⟦1.234.567⟧ people"),
    (AsNumber, "⟦1’234⟧ people"),
    (AsNumber, "⟦1½⟧ cups"),
    (AsNumber, "⟦10⁵⟧ cells"),
    (AsNumber, "⟦3 X 10^5⟧ cells"),
    (AsNumber, "it makes ⟦$1.2M⟧"),
    (AsNumber, r"⟦7⟧ of them, so the area is $2\pi$"),
    (AsNumber, r"it is $⟦\sqrt{16}⟧$"),
    (AsNumber, "⟦7⟧ and not 3x"),
    (AsNumber, "⟦7⟧, or ±5"),
    (AsNumber, "\\boxed{12 and ⟦5⟧"),
    // thought and answer
    (Phrase, "so 3.</think>The answer is ⟦4⟧"),
    (InBox, "\\boxed{3}</think>\\boxed{⟦4⟧} it is"),
    (AsNumber, "\\boxed{3}</think>it is ⟦4⟧"),
    (AsNumber, "a</think>5</think>⟦6⟧"),
    (AsNumber, "<|channel>thought\nso 5.<channel|>⟦6⟧"),
];

const NOT_NUMBERS: &[&str] = &[
    "",
    " ",
    "no digits here",
    "yes",
    ".",
    "-",
    "$",
    "\\boxed{}",
    "\\boxed{...}",
    "The answer is",
    "####",
    "<think>7 or 8",
    "so \\boxed{3}</think> That is all.",
];

const ANYTHING: &[(AnswerForm, &str)] = &[
    // boxes
    (InBox, r"\boxed{⟦\frac{1}{2}⟧}"),
    (InBox, r"$\boxed{⟦x^{2} + \frac{a}{b}⟧}$ 5"),
    (InBox, r"\boxed{⟦\text{(B)}⟧}"),
    (InBox, r"\boxed{⟦True⟧}. Plugging in, Z = 1"),
    (InBox, r"\boxed{⟦\{1, 2\}⟧}"),
    (InBox, r"\boxed{⟦\left\{ x \right\}⟧}"),
    (InBox, r"\boxed{a = \boxed{⟦7⟧}}"),
    (InBox, r"\boxed{⟦1⟧} and \boxed{2"),
    (InBox, r"\boxed {⟦6⟧}"),
    (InBox, r"\\boxed{⟦6⟧}"),
    (InBox, r"\boxed{⟦\frac{}{2}⟧}"),
    (InBox, r"\boxed{⟦] )⟧}"),
    (InBox, "\\boxed{\n⟦x⟧\n}"),
    // options
    (Phrase, "So the answer is (⟦B⟧)."),
    (Phrase, "So the answer is **(⟦B⟧)**."),
    (Phrase, "the answer is (⟦C⟧) the third of 5"),
    (Phrase, "Answer: ⟦B⟧"),
    (Phrase, "Answer: ⟦B⟧. The cat"),
    (Phrase, "Answer: ⟦D⟧) 12"),
    (Phrase, "The correct answer is option ⟦A⟧"),
    (Phrase, "The correct answer is **Option (⟦A⟧)** as 3 > 2"),
    (Phrase, "The answer is $⟦B⟧$."),
    (Phrase, "The answer is ⟦A cat⟧."),
    // verdicts
    (Phrase, "So the answer is ⟦yes⟧."),
    (Phrase, "So the answer is **⟦Yes⟧**, because 5 > 3"),
    (Phrase, "The answer is ⟦No⟧ (there are 3)"),
    (Phrase, "So the answer is \"⟦invalid⟧\"."),
    (Phrase, "The answer is ⟦valid⟧ since it follows"),
    (Phrase, "The answer is `⟦True⟧`"),
    // words
    (Phrase, "The answer is ⟦Paris⟧. Its river is 777 km long"),
    (Phrase, "The answer is ⟦red, green, blue⟧."),
    (Phrase, "The answer is ⟦between 3 and 4⟧."),
    (Phrase, "The answer is '⟦New York⟧', which has 8 letters"),
    (Phrase, "The answer is ⟦May 5, 2020⟧."),
    (Phrase, "The answer is ⟦Dr. Who⟧."),
    (Phrase, "Answer: ⟦f(x)⟧"),
    (Phrase, "Answer: [⟦apple⟧]"),
    (Phrase, "The answer is $⟦x^2+1⟧$."),
    (Phrase, r"The answer is \(⟦2\pi⟧\)."),
    (Phrase, "The answer is ⟦5x⟧."),
    (Phrase, "#### ⟦blue⟧"),
    (Phrase, "#### Conclusion\nSo the answer is ⟦blue⟧."),
    // numbers in phrases
    (Phrase, "The answer is ⟦12⟧ apples."),
    (Phrase, "The answer is $⟦12⟧."),
    (Phrase, "The answer is about ⟦12.5⟧ km, as 5 * 2.5"),
    (Phrase, "The answer is $x = ⟦-4⟧$."),
    (Phrase, "The answer is $⟦\\frac{3}{4}⟧$."),
    (Phrase, "The answer is ⟦5⟧kg."),
    // formulas, verbatim
    (Phrase, "The answer is: $⟦[-2,2]⟧$"),
    (Phrase, "The answer is $⟦f(x) = (x+1)(x+2)⟧$."),
    (Phrase, r"The answer is $⟦-\tan (x)⟧$."),
    (Phrase, "The answer is $⟦-9 x⟧$."),
    (Phrase, "The answer is $⟦(2, 3)⟧$ since 5 is odd."),
    (Phrase, r"The answer is \(⟦x < 1 \text{ or } x > 2⟧\)."),
    (Phrase, r"The answer is $⟦\$32,\!348⟧$."),
    (Phrase, r"The answer is $⟦28 \%⟧$. I hope it is correct."),
    (Phrase, r"The answer is $⟦12 \text{ cm}^2⟧$."),
    (Phrase, "The answer is $⟦2x + 3y = 7⟧$."),
    (Phrase, "The answer is $\\theta = ⟦\\frac{3}{4}⟧$."),
    (Phrase, "The answer is $$⟦5!⟧.$$ So there."),
    (Phrase, "Final answer:\n\\[\n⟦\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}⟧\n\\]\nDone."),
    (Phrase, "The answer is $⟦x⟧$, where $y > 3$."),
    (Phrase, "Final Answer: The largest $n$ is ⟦34⟧."),
    (Phrase, "Final Answer: The largest $n$ is $⟦2^k⟧$."),
    (Phrase, "Final Answer: There are ⟦12⟧ ways, as 3 * 4"),
    (Phrase, "The answer is ⟦[-2, 2]⟧."),
    (Phrase, "The answer is ⟦(0, 1]⟧, so 5."),
    (Phrase, "$⟦[0,1)⟧$"),
    (Phrase, "So (A) is wrong, and the correct option is ⟦C⟧."),
    (Phrase, "The correct choice is (⟦D⟧), as 3 > 2"),
    (AsNumber, "The correct option is the one with ⟦5⟧"),
    (Phrase, "The answer is ⟦1 000 000⟧."),
    (AsNumber, "in all ⟦12 345 678⟧ people"),
    (AsNumber, "from 3 ⟦200⟧"),
    (AsNumber, "of 100 200 ⟦300⟧"),
    (Phrase, "The answer is ⟦5 million⟧."),
    (Phrase, r"it is $⟦5 \text{ million}⟧$ in all"),
    (Phrase, "The answer is ⟦15⟧ minutes (0.25 hours)."),
    (Phrase, "Of 12 apples 5 are red. The answer is ⟦twelve⟧."),
    (Phrase, "With 2 of them, the answer is ⟦twenty-one⟧."),
    (Phrase, "答案 3. The answer is ⟦４２⟧."),
    // no phrase
    (AsNumber, "#### Step 2: compute\nSo it makes ⟦14⟧"),
    (AsNumber, "#### 2. Compute\nSo it makes ⟦14⟧"),
    (AsNumber, "What is the answer? It is ⟦3⟧"),
    (Phrase, "⟦Yes⟧"),
    (Phrase, "3 > 2.</think>\n\n**(⟦B⟧)**\n"),
    (Phrase, "</think> $⟦x⟧$"),
    (Phrase, "⟦C⟧) Paris"),
    (Phrase, "(⟦C⟧) Paris"),
    (Phrase, "Rome is in Italy.\n\n**⟦C⟧. Paris**"),
    (Phrase, "3 + 4 = 7, so:\nOption ⟦B⟧ is correct."),
    (AsNumber, "The options are\nA) 3\nB) ⟦4⟧"),
    (Phrase, "The answer is **⟦Paris⟧** 🎉."),
    (Phrase, "⟦Paris⟧ ✅"),
    (Phrase, "The answer is ⟦] ) >⟧"),
    (Phrase, "The answer is ⟦15⟧ minutes (0.25 hours)."),
];

const NOTHING: &[&str] =
    &["", "\n", "two words", "\\boxed{}", "((", "</think>", "The answer is.", "The answer is ...", "🙂"];

/// Errors in the answers found in marked texts.
fn wrong(rule: AnswerRule, cases: &[(AnswerForm, &str)]) -> Vec<String> {
    let check = |(form, marked): &(AnswerForm, &str)| {
        let (text, expected) = unmark(marked);
        let found = find_answer(&text, rule);
        let matches =
            found.as_ref().map(|found| (found.form, &found.bytes)) == expected.as_ref().map(|span| (*form, span));
        let shown = found.map(|found| (found.form, text[found.bytes].to_owned()));
        (!matches || expected.is_none()).then(|| format!("{rule:?} on {marked:?}: found {shown:?}"))
    };
    cases.iter().filter_map(check).collect()
}

#[test]
fn numbers_are_found() {
    assert!(NUMBERS.len() >= 80);
    assert_eq!(wrong(Number, NUMBERS), Vec::<String>::new());
    for text in NOT_NUMBERS {
        assert_eq!(find_answer(text, Number), None, "{text:?}");
    }
}

#[test]
fn anything_is_found() {
    for rule in [Auto, Boxed] {
        assert_eq!(wrong(rule, ANYTHING), Vec::<String>::new());
        for text in NOTHING {
            assert_eq!(find_answer(text, rule), None, "{text:?}");
        }
    }
}

#[test]
fn an_exact_answer_keeps_its_unit() {
    let cases = [
        (Phrase, "The answer is ⟦20 km⟧."),
        (Phrase, "So the answer is ⟦3:30 PM⟧."),
        (Phrase, "The answer is ⟦] ) >⟧"),
        (InBox, r"\boxed{⟦20 km⟧}"),
        (Phrase, "**Answer:** *⟦the red one⟧* 🎉"),
    ];
    assert_eq!(wrong(AnswerRule::Words, &cases), Vec::<String>::new());
}

#[test]
fn a_dataset_has_its_rule() {
    let rules =
        [(Some("gsm8k"), Number), (Some("openai/GSM8K"), Number), (Some("math"), Boxed), (Some("MATH-500"), Boxed)];
    let more = [
        (Some("bbh"), Boxed),
        (Some("bbh.navigate"), Boxed),
        (Some("mmlu"), Auto),
        (Some("aftermath"), Auto),
        (None, Auto),
    ];
    for (dataset, rule) in rules.into_iter().chain(more) {
        assert_eq!(AnswerRule::for_dataset(dataset), rule, "{dataset:?}");
    }
}

const REFERENCE: &[(AnswerRule, &str)] = &[
    (Number, "it is ⟦42⟧."),
    (Number, "it is ⟦42⟧.<|im_end|>\n"),
    (Number, r"\(\boxed{216⟦0⟧}\)"),
    (Number, "216⟦0⟧"),
    (Number, r"\boxed{⟦240⟧}"),
    (Number, r"\boxed{ ⟦12⟧ }"),
    (Number, r"\boxed{⟦1,234⟧}"),
    (Number, r"\boxed{$⟦15.40⟧}"),
    (Number, r"\boxed{⟦15⟧%}"),
    (Number, r"\boxed{\$⟦15⟧}"),
    (Number, "it is -⟦5⟧"),
    (Number, "$⟦1,234.50⟧!"),
    (Number, "1,⟦2⟧"),
    (Number, "⟦50⟧%"),
    (Number, "p = .⟦5⟧"),
    (Number, r"\boxed{5} of ⟦7⟧"),
    (Number, r"\boxed{5} in ⟦15⟧ is it"),
    (Number, "5\nno number here"),
    (Number, "\\boxed{⟦x⟧}\nno number here"),
    (Number, "\\boxed{x} and ⟦x⟧\nno number here"),
    (Number, "5\u{1c}\n \n⟦7⟧\u{1f} \u{a0}"),
    (Number, "⟦٣٤⟧"),
    (Number, ""),
    (Boxed, r"\boxed{⟦\frac{1}{2}⟧}"),
    (Boxed, r"\boxed{a} \boxed{\fr⟦a⟧c{}{2}}"),
    (Boxed, r"\boxed{ ⟦x⟧ }"),
    (Boxed, r"\boxed{x = \boxed{⟦5⟧}}"),
    (Boxed, r"\boxed{1} \boxed{⟦2⟧}"),
    (Boxed, r"\boxed{2} in 1⟦2⟧ steps"),
    (Boxed, r"\boxed{⟦3⟧} \boxed{4"),
    (Boxed, r"\boxed{⟦3⟧} \boxed{}"),
    (Boxed, r"\boxed {3}"),
    (Boxed, r"\fbox{3}"),
    (Boxed, "the answer is 3"),
    (Auto, r"\boxed{⟦a⟧} 3"),
    (Auto, "it is ⟦3⟧"),
    (Auto, "nothing"),
];

#[test]
fn the_reference_keeps_its_ways() {
    for (rule, marked) in REFERENCE {
        let (text, expected) = unmark(marked);
        // The box's content keeps its whitespace; these cases' marks are inside it.
        let found = find_answer_reference(&text, *rule).map(|found| {
            let inside = &text[found.clone()];
            let start = found.start + (inside.len() - inside.trim_start().len());
            start..start + inside.trim().len()
        });
        let shown = found.clone().map(|found| &text[found]);
        assert_eq!(found, expected, "{rule:?} on {marked:?}: found {shown:?}");
    }
    assert_eq!(find_answer_reference(r"\boxed{ x }", Boxed), Some(7..10));
}

/// The folder of a golden file's model, if it was fetched.
fn model_folder(name: &str) -> Option<PathBuf> {
    let models = std::env::var_os("UQAC_MODELS").map(PathBuf::from);
    let models = models.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/uqac-models")))?;
    Some(models.join(name)).filter(|folder| folder.join("tokenizer.json").is_file())
}

/// The authors' answer tokens for one golden item, and ours.
fn answer_tokens(item: &serde_json::Value, tokenizer: &Tokenizer) -> (Range<usize>, Option<Range<usize>>) {
    let integers =
        |key: &str| -> Vec<i64> { item[key].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect() };
    let ids: Vec<u32> = integers("input_ids").into_iter().map(|id| u32::try_from(id).unwrap()).collect();
    let response = &ids[usize::try_from(item["n_instr"].as_u64().unwrap()).unwrap()..];
    let positions: Vec<usize> = integers("ans_src").into_iter().map(|row| usize::try_from(row + 1).unwrap()).collect();
    let expected = positions[0]..positions[positions.len() - 1] + 1;
    assert!(expected.clone().eq(positions), "the answer's tokens are contiguous");
    let text = tokenizer.decode(response, false).unwrap();
    let tokens: Vec<String> = response.iter().map(|id| tokenizer.decode(&[*id], false).unwrap()).collect();
    let span = find_answer_reference(&text, AnswerRule::for_dataset(item["dataset"].as_str()));
    (expected, span.and_then(|span| tokens_of_span_reference(&tokens, &text, &span)))
}

#[test]
fn the_reference_agrees_with_the_authors_code() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden");
    let files = [
        ("uqac_gemma-3-270m.jsonl.gz", "gemma-3-270m", 8),
        ("uqac_qwen2.5-coder-0.5b.jsonl.gz", "qwen2.5-coder-0.5b-instruct", 18),
        ("uqac_smollm2-135m.jsonl.gz", "smollm2-135m-instruct", 7),
    ];
    for (file, model, items) in files {
        let (path, folder) = (golden.join(file), model_folder(model));
        let Some(folder) = folder.filter(|_| path.is_file()) else {
            test_support::skipped(format_args!("{file} needs the golden data and the tokenizer of {model}"));
            continue;
        };
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        let lines: Vec<String> =
            BufReader::new(GzDecoder::new(File::open(&path).unwrap())).lines().map(Result::unwrap).collect();
        assert_eq!(lines.len(), items, "{file}");
        for line in lines {
            let item: serde_json::Value = serde_json::from_str(&line).unwrap();
            let (expected, found) = answer_tokens(&item, &tokenizer);
            assert_eq!(found, Some(expected), "{file}: {}", item["id"]);
        }
    }
}

/// Strings built from typical parts of answers, with arbitrary text in between.
fn responses() -> impl Strategy<Value = String> {
    let pieces = vec![
        "\\boxed{",
        "\\boxed",
        "\\fbox{",
        "{",
        "}",
        "\\{",
        "\\",
        "\\\\",
        "\\frac{1}{2}",
        "\\frac",
        "{3}",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "The answer is ",
        "answer: ",
        "answer",
        " is ",
        "Final Answer",
        "**",
        "#### ",
        "</think>",
        "\n",
        " ",
        ".",
        ",",
        "-",
        "−",
        "+",
        "%",
        "1",
        "234",
        "2160",
        ",567",
        ".5",
        "/4",
        ":30",
        "e5",
        "^",
        "^{2}",
        "_",
        " 1/2",
        " \\times 10^5",
        "×10⁵",
        "x",
        "(B)",
        "(",
        ")",
        "[",
        "]",
        "\"",
        "’",
        "yes",
        "because",
        ", as ",
        "é",
        "🙂",
        "中",
        "３",
        "٣",
        "½",
        "\u{fffd}",
        "\u{1c}",
        "\u{a0}",
        "\u{202f}",
        "st",
        "\\$",
        "€",
    ];
    let piece = prop_oneof![8 => prop::sample::select(pieces).prop_map(String::from), 1 => any::<String>()];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spans_lie_in_the_text(text in responses()) {
        for rule in [Number, Boxed, Auto] {
            if let Some(found) = find_answer(&text, rule) {
                let inside = text.get(found.bytes.clone());
                prop_assert!(inside.is_some_and(|inside| !inside.is_empty() && inside.trim() == inside), "{:?} in {:?}", found, text);
            }
            if let Some(found) = find_answer_reference(&text, rule) {
                prop_assert!(text.get(found.clone()).is_some_and(|inside| !inside.is_empty()), "{:?} in {:?}", found, text);
            }
        }
    }

    #[test]
    fn tokens_lie_in_the_response(text in responses(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12), from in 0..200_usize, length in 0..50_usize) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let offsets: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        // Cut at arbitrary positions, like byte-level tokens: a partial character decodes to
        // U+FFFD.
        let tokens: Vec<String> = offsets.iter().map(|o| String::from_utf8_lossy(&text.as_bytes()[o.clone()]).into_owned()).collect();
        let span = from..from + length;
        for found in [tokens_of_span(&offsets, &span), tokens_of_span_reference(&tokens, &text, &span)].into_iter().flatten() {
            prop_assert!(found.end <= offsets.len());
        }
        if let Some(found) = tokens_of_span(&offsets, &span) {
            prop_assert!(offsets[found.start].start < span.end && offsets[found.end - 1].end > span.start);
        }
    }
}

#[test]
fn long_repetitions_do_not_stall() {
    for piece in [
        "\\boxed{",
        "answer: ",
        "((",
        "####\n",
        "1,",
        "</think>",
        "$",
        "\\",
        "-",
        "{",
        "}",
        "1.1",
        "answer is **",
        "]. ",
    ] {
        let text = piece.repeat(60_000 / piece.len());
        for rule in [Number, Boxed, Auto] {
            let found = find_answer(&text, rule);
            assert!(found.is_none_or(|found| found.bytes.end <= text.len()), "{piece:?}");
            assert!(find_answer_reference(&text, rule).is_none_or(|found| found.end <= text.len()), "{piece:?}");
        }
    }
}

/// A format's own marks, such as harmony's `<|end|>`, may be the model's end token.
#[test]
fn an_end_token_inside_a_thought_does_not_end_the_response() {
    let options = EngineOptions { device: DeviceChoice::Cpu, threads: 1, ..EngineOptions::default() };
    let engine = Engine::load(&demo::folder().unwrap(), options).unwrap();
    for (response, shown) in [
        ("a<|end|>b<|end|>", "a"),
        ("<think>a<|end|>b</think>c<|end|>d", "<think>a<|end|>b</think>c"),
        ("<think>a<|end|>b</think>c", "<think>a<|end|>b</think>c"),
        ("<think>a<|end|>b", "<think>a"),
        ("<think>a<|end|>", "<think>a"),
    ] {
        let ids = engine.tokenizer().encode(response, false).unwrap();
        assert_eq!(ResponseText::new(&engine, &ids).unwrap().text, shown, "{response}");
    }
}
