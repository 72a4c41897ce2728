//! The pictures: well-formed, escaped, reproducible, and drawn for every possible input.

use roxmltree::{Document, Node};
use uqac::eval::analysis::Estimate;
use uqac::report::svg::{
    Bin, Curve, Picture, Point, Quantity, Reliability, Role, Row, Series, Spot, by_correctness, ece_accuracy,
    ece_auroc, forest, frontier, reliability, risk_coverage, theme,
};

/// Text that breaks out of markup that fails to escape it.
const HOSTILE: &str = "</text></svg><script>alert(1)</script>&\"'\u{0}\u{202e}\u{1b}[31m";

/// Pseudo-random numbers in [0, 1).
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let step = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..count).map(step).collect()
}

fn bins(counts: &[usize], accuracy: impl Fn(f64) -> f64) -> Reliability {
    let width = 1.0 / counts.len() as f64;
    let bin = |(i, items): (usize, &usize)| {
        let confidence = if *items == 0 { f64::NAN } else { (i as f64 + 0.6) * width };
        Bin {
            interval: (i as f64 * width, (i + 1) as f64 * width),
            items: *items,
            confidence,
            accuracy: accuracy(confidence),
            sd: if i.is_multiple_of(2) { 0.04 } else { f64::NAN },
        }
    };
    let bins = counts.iter().enumerate().map(bin).collect();
    Reliability { bins, ece: 0.231, accuracy: 0.44, confidence: 0.71 }
}

fn curve(method: &str, seed: u64, items: usize) -> Curve {
    let mut wrong = 0.0;
    let right = numbers(seed, items);
    let point = |(i, u): (usize, &f64)| {
        let coverage = (i + 1) as f64 / items as f64;
        wrong += f64::from(*u < 0.1 + 0.5 * coverage);
        (coverage, wrong / (i + 1) as f64)
    };
    let points: Vec<(f64, f64)> = right.iter().enumerate().map(point).collect();
    let aurc = points.iter().map(|point| point.1).sum::<f64>() / items as f64;
    Curve { method: method.to_owned(), points, aurc }
}

fn quantity(label: &str, unit_interval: bool, correct: Vec<f64>, incorrect: Vec<f64>) -> Quantity {
    Quantity { label: label.to_owned(), unit_interval, correct, incorrect }
}

fn row(method: &str, role: Role, value: f64, width: f64, probability: bool) -> Row {
    let estimate = |value: f64| Estimate { value, interval: Some([value - width, value + width]) };
    let ece = probability.then(|| estimate(1.0 - value));
    Row { method: method.to_owned(), role, auroc: Some(estimate(value)), ece }
}

/// A score of `count` spots, of one pass more each.
fn series(name: &str, auroc: f64, count: usize) -> Series {
    let spot = |i: usize| {
        let interval = auroc.is_finite().then_some([auroc - 0.04, auroc + 0.03]);
        Spot { passes: 1.0 + i as f64, auroc: Estimate { value: auroc, interval }, note: format!("{name} at {i}") }
    };
    Series { name: name.to_owned(), spots: (1..=count).map(spot).collect() }
}

/// Every kind of picture with ordinary data.
fn ordinary() -> Vec<Picture> {
    let of = "Qwen2.5-Coder-0.5B-Instruct · gsm8k";
    let counts = [0, 2, 3, 5, 4, 0, 6, 5, 8, 9, 7, 6, 12, 10, 8, 13, 9, 17, 24, 41];
    let names = ["p", "p_sim", "p_attn", "answer_prob", "response_prob", "self_consistency", "verbalized"];
    let curves: Vec<Curve> = names.iter().zip(1..).map(|(name, seed)| curve(name, seed, 1319)).collect();
    let scores = |seed, power: f64| numbers(seed, 90).iter().map(|u| u.powf(power)).collect::<Vec<_>>();
    let tokens = |seed, least: f64| numbers(seed, 90).iter().map(|u| least + 200.0 * u * u).collect::<Vec<_>>();
    let lengths = [
        quantity("response (tokens)", false, tokens(5, 60.0), tokens(6, 110.0)),
        quantity("chain (tokens)", false, tokens(7, 6.0), tokens(8, 4.0)),
    ];
    let models = ["Qwen2.5-Coder-0.5B", "SmolLM2-135M", "Gemma-3-270M"];
    let points: Vec<Point> = (0..9u64)
        .zip(numbers(3, 9))
        .map(|(i, u)| Point {
            model: models[i as usize / 3].to_owned(),
            task: ["gsm8k", "math", "bbh"][i as usize % 3].to_owned(),
            accuracy: 0.05 + 0.8 * u,
            auroc: 0.5 + 0.4 * u,
            ece: 0.4 - 0.3 * u,
        })
        .collect();
    let rows = [("Entropy", Role::Other, 0.8), ("P (UQAC)", Role::Main, 0.7), ("Length", Role::Control, 0.6)];
    let rows = rows.map(|(name, role, auroc)| row(name, role, auroc, 0.04, role != Role::Control));
    vec![
        forest("methods", of, &rows),
        reliability("reliability-p", "P (UQAC)", of, &bins(&counts, |confidence| confidence * confidence)),
        risk_coverage("risk-coverage", of, &curves),
        by_correctness(
            "scores-p",
            "P (UQAC) by correctness",
            of,
            &[quantity("P", true, scores(1, 0.4), scores(2, 1.5))],
        ),
        by_correctness("lengths", "Lengths by correctness", of, &lengths),
        ece_accuracy("ece-accuracy", "P (UQAC)", &points),
        ece_auroc("ece-auroc", "P (UQAC)", &points),
        frontier(
            "frontier",
            of,
            &[series("G4", 0.8, 1), series("Agreement", 0.78, 5), series("Agreement + G4", 0.87, 5)],
        ),
    ]
}

/// Every kind of picture with no data, one value, too much data, or non-finite values.
fn extreme() -> Vec<Picture> {
    let nan = f64::NAN;
    let many: Vec<Curve> = (0..30).map(|i| curve(&format!("method number {i} {HOSTILE}"), i, 50)).collect();
    let broken = Curve { method: HOSTILE.to_owned(), points: vec![(nan, 0.5), (0.5, f64::INFINITY)], aurc: nan };
    let no_bins = Reliability { bins: Vec::new(), ece: nan, accuracy: nan, confidence: nan };
    let bad_bin = Bin { interval: (0.0, 1.0), items: 3, confidence: nan, accuracy: nan, sd: nan };
    let bad_bins = Reliability { bins: vec![bad_bin], ..no_bins.clone() };
    let point = |accuracy, ece| {
        let (model, task) = (HOSTILE.to_owned(), HOSTILE.to_owned());
        Point { model, task, accuracy, auroc: accuracy, ece }
    };
    let all_nan = quantity(HOSTILE, false, vec![nan, f64::NEG_INFINITY], vec![f64::INFINITY]);
    let no_row = Row { method: HOSTILE.to_owned(), role: Role::Other, auroc: None, ece: None };
    vec![
        forest(
            "u",
            HOSTILE,
            &[row(HOSTILE, Role::Main, nan, nan, true), no_row, row("", Role::Other, 1e12, 1e12, true)],
        ),
        forest("v", "", &[]),
        reliability("a", HOSTILE, HOSTILE, &no_bins),
        reliability("b", "", "", &bad_bins),
        reliability("c", "all correct", "", &bins(&[0, 0, 0, 7], |_| 1.0)),
        reliability("d", "no items", "", &bins(&[0; 20], |_| nan)),
        risk_coverage("e", HOSTILE, &many),
        risk_coverage("f", "", &[]),
        risk_coverage("g", "", &[broken]),
        risk_coverage("h", "one item", &[curve("p", 1, 1)]),
        by_correctness("i", HOSTILE, HOSTILE, &[]),
        by_correctness("j", "", "", &[all_nan]),
        by_correctness("k", "", "", &[quantity("all correct", true, vec![1.0; 9], vec![])]),
        by_correctness("l", "", "", &[quantity("huge", false, vec![-f64::MAX, 1e-300], vec![f64::MAX])]),
        ece_accuracy("m", HOSTILE, &[point(nan, 0.1), point(0.5, nan), point(0.0, 0.0), point(1.0, 1.0)]),
        ece_accuracy("n", "", &[]),
        ece_auroc("q", HOSTILE, &[point(nan, 0.1), point(0.5, nan), point(0.5, 0.0)]),
        ece_auroc("r", "", &[]),
        frontier("s", HOSTILE, &(0..40).map(|i| series(HOSTILE, f64::from(i), 3)).collect::<Vec<_>>()),
        frontier("t", "", &[series("", f64::NAN, 2), series("none", 0.5, 0)]),
        frontier("w", "", &[]),
    ]
}

fn text(node: Node) -> String {
    node.descendants().filter_map(|n| n.text().filter(|_| n.is_text())).collect()
}

/// Leaves the pictures in `target/tmp/pictures` for inspection.
#[test]
fn every_picture_is_a_file() {
    let folder = test_support::repository().join("target/tmp/pictures");
    std::fs::create_dir_all(&folder).unwrap();
    for picture in ordinary().into_iter().chain(extreme()) {
        std::fs::write(folder.join(format!("{}.svg", picture.name)), picture.standalone()).unwrap();
    }
}

#[test]
fn every_picture_is_well_formed_and_described() {
    for picture in ordinary().into_iter().chain(extreme()) {
        let svg = picture.standalone();
        let document = Document::parse(&svg).unwrap_or_else(|e| panic!("{}: {e}\n{svg}", picture.name));
        let root = document.root_element();
        assert_eq!((root.tag_name().name(), root.attribute("role")), ("svg", Some("img")), "{}", picture.name);
        let by_id = |id: &str| root.descendants().find(|node| node.attribute("id") == Some(id));
        let labels = root.attribute("aria-labelledby").unwrap();
        let names: Vec<&str> = labels.split(' ').map(|id| by_id(id).unwrap().tag_name().name()).collect();
        assert_eq!(names, ["title", "desc"], "{}", picture.name);
        assert!(!text(root.children().find(|n| n.has_tag_name("desc")).unwrap_or(root)).is_empty());
        let ids: Vec<&str> = root.descendants().filter_map(|node| node.attribute("id")).collect();
        assert!(ids.iter().all(|id| id.starts_with(&picture.name)), "{ids:?}: unique in a page of many pictures");
        assert!(Document::parse(&picture.inline()).is_ok());
    }
}

#[test]
fn nothing_lies_outside_the_picture_or_is_no_number() {
    for picture in ordinary().into_iter().chain(extreme()) {
        let svg = picture.standalone();
        let document = Document::parse(&svg).unwrap();
        let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{}: {text}", picture.name));
        let size = |name| number(document.root_element().attribute(name).unwrap());
        let (width, height) = (size("width"), size("height"));
        for node in document.root_element().children() {
            // a path's absolute points: `M x y`, `L x y`; a shape continues relative to its own
            let points = node.attribute("d").into_iter().flat_map(|d| d.split(['M', 'L']).skip(1));
            let points = points.map(|point| point.split('m').next().unwrap().split_once(' ').unwrap());
            let corner = node.attribute("x").zip(node.attribute("y"));
            for (x, y) in points.chain(corner) {
                for (at, max) in [(number(x), width), (number(y), height)] {
                    assert!((0.0..=max).contains(&at), "{}: {at} of {max} in {node:?}", picture.name);
                }
            }
            let end = |at, length| Some(number(node.attribute(at)?) + number(node.attribute(length)?));
            assert!(end("x", "width").is_none_or(|x| x <= width) && end("y", "height").is_none_or(|y| y <= height));
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", picture.name);
    }
}

#[test]
fn text_from_outside_stays_text() {
    for picture in extreme() {
        let svg = picture.standalone();
        let document = Document::parse(&svg).unwrap();
        assert!(document.descendants().all(|node| !node.has_tag_name("script")), "{}", picture.name);
        assert!(!svg.contains(['\u{202e}', '\u{1b}', '\0']), "{}", picture.name);
    }
}

#[test]
fn the_same_numbers_give_the_same_bytes() {
    let bytes = |pictures: Vec<Picture>| pictures.iter().map(Picture::standalone).collect::<Vec<_>>();
    assert_eq!(bytes(ordinary()), bytes(ordinary()));
    assert_eq!(bytes(extreme()), bytes(extreme()));
}

#[test]
fn every_class_has_a_colour() {
    let css = theme::style_sheet();
    for picture in ordinary().into_iter().chain(extreme()) {
        let svg = picture.inline();
        let document = Document::parse(&svg).unwrap();
        for class in document.descendants().filter_map(|node| node.attribute("class")).flat_map(|c| c.split(' ')) {
            assert!(css.contains(&format!(".{class}")), "{}: {class}", picture.name);
        }
    }
}

#[test]
fn what_is_drawn_is_what_was_measured() {
    let picture = reliability("r", "p", "m", &bins(&[10, 0, 30], |_| 0.5));
    let svg = picture.standalone();
    let document = Document::parse(&svg).unwrap();
    let classed = |class: &str| {
        let has = |node: &Node| node.attribute("class") == Some(class);
        document
            .root_element()
            .children()
            .filter(move |node| has(node) && node.has_tag_name("rect"))
            .collect::<Vec<_>>()
    };
    let height = |node: &Node| node.attribute("height").unwrap().parse::<f64>().unwrap();
    // Two bins of accuracy 0.5 (and the legend's symbol), with 10 and 30 items: bars of equal height, and bars
    // in a ratio of one to three.
    let accuracy: Vec<f64> = classed("f-s0 l-paper").iter().map(height).collect();
    assert_eq!(accuracy, [110.0, 110.0]);
    let items: Vec<f64> = classed("f-s5 l-paper").iter().map(height).collect();
    assert!((items[1] / items[0] - 3.0).abs() < 0.01, "{items:?}: to a hundredth of a unit");
    // The gap of the first bin is between 0.2 (its mean confidence) and 0.5: 0.3 of the panel's 220.
    let gaps: Vec<f64> = classed("l-s1").iter().map(height).collect();
    assert!((gaps[0] - 0.3 * 220.0).abs() < 0.011, "{gaps:?}");
    assert!(text(document.root_element()).contains("ECE 0.231"));
}

#[test]
fn points_on_a_line_are_correlated() {
    let point = |x: f64| Point { model: String::new(), task: String::new(), accuracy: 0.5, auroc: x, ece: 1.0 - x };
    let picture = ece_auroc("r", "p", &[0.6, 0.7, 0.9].map(point)).standalone();
    assert!(picture.contains("Pearson r = -1.00 over 3 points"), "{picture}");
    assert!(!ece_accuracy("r", "p", &[0.6, 0.7, 0.9].map(point)).standalone().contains("Pearson"), "accuracy is one");
}

#[test]
fn a_forest_has_a_band_and_a_line_for_each_number() {
    let rows = [row("a", Role::Other, 0.8, 0.05, true), row("b", Role::Other, 0.6, 0.05, false)];
    let picture = forest("f", "", &rows).standalone();
    let document = Document::parse(&picture).unwrap();
    let count = |name, class: &str| {
        document
            .descendants()
            .filter(|n| n.has_tag_name(name) && n.attribute("class").is_some_and(|c| c.starts_with(class)))
            .count()
    };
    let svg = "http://www.w3.org/2000/svg";
    assert_eq!((count((svg, "rect"), "f-s5"), count((svg, "path"), "l-ink")), (3, 3), "two of AUROC, one of ECE");
}
