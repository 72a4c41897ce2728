//! The architecture rule, checked on the sources: modules import downwards, and sibling files do not import in cycles.
//!
//! * The layers are [`LAYERS`], highest first; a file may use its own layer and those below it. (That those of the feature
//!   `program` are not used by the others is also what a build without it shows.)
//! * A cycle is one among the modules of one folder, each taken with everything inside it. The contents of a folder's
//!   `mod.rs` belong to the folder itself: it may use its children, and they may use it.
//! * Every path that starts with `crate`, `super` or `self` counts, in `use` or elsewhere, including in unit tests;
//!   names that a module re-exports by `pub use` count as their targets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Modules of the crate, highest layer first; modules in one row are peers.
const LAYERS: [&[&str]; 11] = [
    &["cli", "bench"],
    &["serve"],
    &["report"],
    &["eval"],
    &["io"],
    &["uq"],
    &["engine"],
    &["backend"],
    &["model"],
    &["cache"],
    &["files", "names", "order", "units"],
];

/// A module's path relative to the crate: `["backend", "cuda", "pass"]`.
type Module = Vec<String>;

/// A path in a source file.
#[derive(Clone, Debug)]
struct Use {
    file: PathBuf,
    line: usize,
    /// The module that contains the path, and the module it refers to.
    from: Module,
    to: Module,
}

#[test]
fn modules_import_downwards() {
    let uses = uses(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(uses.len() > 300, "only {} paths were found", uses.len());
    let upward = upward(&uses);
    assert!(upward.is_empty(), "{} imports go up:\n{}", upward.len(), upward.join("\n"));
}

#[test]
fn files_do_not_import_in_circles() {
    let circles = circles(&uses(Path::new(env!("CARGO_MANIFEST_DIR"))));
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

#[test]
fn what_goes_up_or_in_a_circle_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("lib.rs", "pub mod backend;\npub mod engine;\n"),
        ("engine/mod.rs", "mod a;\nmod b;\nmod c;\npub use b::B;\nuse crate::backend::{self, Device};\n"),
        ("engine/a.rs", "// crate::report::x\nconst S: &str = \"crate::eval\";\nuse super::{B, c};\n"),
        ("engine/b.rs", "use super::c::{d::D, C};\nfn f() { super::a::f(); }\n"),
        ("engine/c/mod.rs", "mod d;\nmod e;\nfn f(d: &'static d::D) {}\n"),
        ("engine/c/d.rs", "use super::C;\nuse super::super::C as Other;\n"),
        ("engine/c/e.rs", "use super::d;\n"),
        ("backend.rs", "use crate::{\n    model::M,\n    engine::{Engine, a},\n};\n"),
        ("model.rs", "#[cfg(test)]\nmod tests {\n    use crate::io;\n}\n"),
        ("io.rs", ""),
    ] {
        let path = folder.path().join("src").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let uses = uses(folder.path());
    assert_eq!(
        upward(&uses),
        [
            "src/backend.rs:3: backend imports from engine, which is above it",
            "src/backend.rs:3: backend imports from engine, which is above it",
            "src/model.rs:3: model imports from io, which is above it",
        ]
    );
    assert_eq!(circles(&uses), ["engine::a -> engine::b (src/engine/a.rs:3), back by src/engine/b.rs:2"]);
}

/// The layer of a module, 0 being the highest; `None` for the crate root.
fn layer(module: &Module) -> Option<usize> {
    let name = module.first()?;
    let layer = LAYERS.iter().position(|names| names.contains(&name.as_str()));
    Some(layer.unwrap_or_else(|| panic!("no layer has {name}: give it one in LAYERS")))
}

/// Uses of a higher layer, one line each.
fn upward(uses: &[Use]) -> Vec<String> {
    let up = uses.iter().filter(|u| layer(&u.from).zip(layer(&u.to)).is_some_and(|(from, to)| to < from));
    let line = |u: &Use| {
        let Use { file, line, from, to } = u;
        format!("{}:{line}: {} imports from {}, which is above it", file.display(), from[0], to[0])
    };
    up.map(line).collect()
}

/// Pairs of modules in one folder that reach each other, one line each.
fn circles(uses: &[Use]) -> Vec<String> {
    // neighbours, each with the first use that makes it one, by folder and module
    let mut edges: BTreeMap<Module, BTreeMap<Module, &Use>> = BTreeMap::new();
    for u in uses {
        let common = u.from.iter().zip(&u.to).take_while(|(a, b)| a == b).count();
        // layers are covered by the other test
        if common > 0 && common < u.from.len() && common < u.to.len() {
            let neighbours = edges.entry(u.from[..=common].to_vec()).or_default();
            neighbours.entry(u.to[..=common].to_vec()).or_insert(u);
        }
    }
    let mut circles = Vec::new();
    for (from, neighbours) in &edges {
        for (to, there) in neighbours {
            let Some(back) = way(&edges, to, from) else { continue };
            // report each pair once, from the module that comes first
            if from < to || !edges[to].contains_key(from) {
                let place = |u: &Use| format!("{}:{}", u.file.display(), u.line);
                let back: Vec<String> = back.into_iter().map(place).collect();
                let (from, to) = (from.join("::"), to.join("::"));
                circles.push(format!("{from} -> {to} ({}), back by {}", place(there), back.join(", ")));
            }
        }
    }
    circles
}

/// A chain of uses leading from one module to another.
fn way<'u>(edges: &BTreeMap<Module, BTreeMap<Module, &'u Use>>, from: &Module, to: &Module) -> Option<Vec<&'u Use>> {
    let mut seen = BTreeSet::from([from.clone()]);
    let mut ways: Vec<(Module, Vec<&Use>)> = vec![(from.clone(), Vec::new())];
    while let Some((at, way)) = ways.pop() {
        for (next, u) in edges.get(&at).into_iter().flatten() {
            let way: Vec<&Use> = way.iter().copied().chain([*u]).collect();
            if next == to {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                ways.push((next.clone(), way));
            }
        }
    }
    None
}

/// Every use of one module by another in a crate's sources, in file and line order.
fn uses(root: &Path) -> Vec<Use> {
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    files.sort();
    let mut modules = BTreeSet::new();
    let mut paths: Vec<(PathBuf, Module, Found)> = Vec::new();
    for file in files {
        let relative = file.strip_prefix(root).unwrap().to_path_buf();
        let module = module_of(&relative);
        let text = std::fs::read_to_string(&file).unwrap();
        for found in paths_of(&tokens(&text), &module) {
            paths.push((relative.clone(), module.clone(), found));
        }
        modules.insert(module);
    }
    // re-exports: `pub use` of a name
    let mut passed_on: BTreeMap<Module, Module> = BTreeMap::new();
    for (_, module, found) in paths.iter().filter(|(.., found)| found.is_public_use) {
        if let Some(name) = found.path.last() {
            passed_on.insert([&module[..], std::slice::from_ref(name)].concat(), found.path.clone());
        }
    }
    let uses = paths.into_iter().filter(|(.., found)| !found.is_child).map(|(file, from, found)| Use {
        file,
        line: found.line,
        from,
        to: resolve(&found.path, &modules, &passed_on),
    });
    uses.filter(|u| u.from != u.to).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}

/// `src/backend/cuda/mod.rs` is `backend::cuda`.
fn module_of(file: &Path) -> Module {
    let mut module: Module =
        file.with_extension("").iter().skip(1).map(|part| part.to_str().unwrap().to_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// The module that a path refers to: its longest prefix that is a module, after resolving re-exports.
fn resolve(path: &[String], modules: &BTreeSet<Module>, passed_on: &BTreeMap<Module, Module>) -> Module {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let known = (1..=path.len()).find_map(|len| Some((len, passed_on.get(&path[..len])?)));
        let Some((len, target)) = known.filter(|(len, target)| path[..*len] != ***target) else { break };
        path = [target, &path[len..]].concat();
    }
    while !path.is_empty() && !modules.contains(&path) {
        path.pop();
    }
    path
}

/// A word or symbol of a source file, and its line.
type Token = (String, usize);

/// The words and symbols of a source file, without comments, string and character literals.
fn tokens(text: &str) -> Vec<Token> {
    let pattern = regex::Regex::new(
        r##"(?s)//[^\n]*|/\*.*?\*/|b?r#".*?"#|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^']+|[^'\\])'|(\w+|::|[^\s\w])"##,
    )
    .unwrap();
    let (mut line, mut at, mut tokens) = (1, 0, Vec::new());
    for found in pattern.captures_iter(text) {
        let start = found.get(0).unwrap().start();
        line += text[at..start].matches('\n').count();
        at = start;
        if let Some(token) = found.get(1) {
            tokens.push((token.as_str().to_owned(), line));
        }
    }
    tokens
}

/// A path found in a source file, relative to the crate root.
struct Found {
    path: Module,
    line: usize,
    is_public_use: bool,
    /// Refers to the module's own child, as in `pub use child::Name`: relevant only as a re-export.
    is_child: bool,
}

fn paths_of(tokens: &[Token], module: &Module) -> Vec<Found> {
    let word = |at: usize| tokens.get(at).map_or("", |(word, _)| word.as_str());
    let mut found = Vec::new();
    let mut at = 0;
    // `super` in an inline module, such as unit tests, refers to the file's module
    let inline = tokens.windows(3).position(|w| w[0].0 == "mod" && w[2].0 == "{").unwrap_or(tokens.len());
    while at < tokens.len() {
        let is_use = at > 0 && word(at - 1) == "use";
        let is_public_use = is_use && at > 1 && (word(at - 2) == "pub" || word(at - 2) == ")");
        let is_start = word(at + 1) == "::" && (at == 0 || word(at - 1) != "::");
        let (start, is_child) = match word(at) {
            "crate" if is_start => (Vec::new(), false),
            "self" if is_start => (module.clone(), false),
            "super" if is_start && at > inline => (module.clone(), false),
            "super" if is_start => (module[..module.len().saturating_sub(1)].to_vec(), false),
            child if is_start && is_public_use => ([&module[..], &[child.to_owned()]].concat(), true),
            _ => {
                at += 1;
                continue;
            }
        };
        let mut paths = Vec::new();
        at = tree(tokens, at + 1, start, &mut paths);
        found.extend(paths.into_iter().map(|(path, line)| Found { path, line, is_public_use, is_child }));
    }
    found
}

/// Parses `::a::{b, c::d}` after a path; returns where it ends.
fn tree(tokens: &[Token], mut at: usize, mut path: Module, paths: &mut Vec<(Module, usize)>) -> usize {
    let word = |at: usize| tokens.get(at).map_or("", |(word, _)| word.as_str());
    let mut line = tokens[at.saturating_sub(1)].1;
    while word(at) == "::" {
        line = tokens[at].1;
        match word(at + 1) {
            "{" => {
                at += 2;
                while at < tokens.len() && word(at) != "}" {
                    let mut path = path.clone();
                    match word(at) {
                        "," => {
                            at += 1;
                            continue;
                        }
                        "self" | "*" => {}
                        "super" => drop(path.pop()),
                        name => path.push(name.to_owned()),
                    }
                    at = tree(tokens, at + 1, path, paths);
                    if word(at) == "as" {
                        at += 2;
                    }
                }
                return at + 1;
            }
            "super" => drop(path.pop()),
            name if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => path.push(name.to_owned()),
            _ => break, // `*`, `<`
        }
        at += 2;
    }
    paths.push((path, line));
    at.max(1)
}
