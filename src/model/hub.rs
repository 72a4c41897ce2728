//! From a model's name (a folder, `abacus`, or a name on the Hugging Face hub) to its folder on this machine.
//!
//! Nothing is downloaded: an error names the command that does. The crate `hf-hub` looks up files, not folders, and has no
//! local folders.

use super::demo::{self, DemoError};
use crate::{cache, files};
use regex::{Captures, Regex};
use std::{ffi::OsString, path::Path, path::PathBuf, sync::LazyLock};

/// Why there is no model folder for a name.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// Written like a path, but nothing is there.
    #[error("no such folder: {}", path.display())]
    NoSuchFolder { path: PathBuf },
    /// A file, such as a checkpoint, or a folder, but not a model's.
    #[error("{} is {what}", path.display())]
    NotAModel { path: PathBuf, what: &'static str },
    /// The embedded model cannot be unpacked.
    #[error(transparent)]
    Embedded(#[from] DemoError),
    /// Neither a folder nor a valid name.
    #[error(
        "\"{name}\" is neither a folder nor a model name; give a folder with config.json, org/name, or org/name@revision"
    )]
    BadName { name: String },
    /// No environment variable locates the cache.
    #[error(
        "\"{name}\" is not a folder, and the Hugging Face cache cannot be found: \
         set HF_HUB_CACHE, HF_HOME or HOME (USERPROFILE on Windows), or give the model's folder"
    )]
    NoCache { name: String },
    /// The hub cache lacks the model, or this revision of it.
    #[error(
        "\"{name}\" is neither a folder nor in the Hugging Face cache ({}{}); {}{}",
        looked.display(),
        if available.is_empty() { " does not exist".to_owned() } else { format!(" has {}", available.join(", ")) },
        download(name),
        if revision == MAIN { String::new() } else { format!(" --revision {revision}") }
    )]
    NotInCache { name: String, revision: String, looked: PathBuf, available: Vec<String> },
}

impl LocateError {
    /// Repository and revision of a model that a download would provide.
    pub fn downloadable(&self) -> Option<(&str, &str)> {
        match self {
            LocateError::NotInCache { name, revision, .. } => Some((name, revision)),
            _ => None,
        }
    }
}

/// The command that downloads a model.
fn download(name: &str) -> String {
    match name.contains('/') {
        true => format!("download it with: hf download {name}"),
        false => format!("a model's name begins with its owner, as in Qwen/Qwen3-0.6B: hf download OWNER/{name}"),
    }
}

const MAIN: &str = "main";

const GGUF: &str = "for llama.cpp (GGUF); give the model's own repository (safetensors), or convert it \
                    with transformers (MODELS.md has the lines) and give that folder";

/// The folder of a model.
///
/// [`demo::NAME`] is the embedded model (a folder of that name is `./abacus`). Any other existing folder is used as is.
/// Anything else is a name on the Hugging Face hub, `org/name` or `org/name@revision` (a branch, a tag or a commit; `main` by
/// default), looked up in the local cache: `$HF_HUB_CACHE`, else `$HUGGINGFACE_HUB_CACHE`, else `$HF_HOME/hub`, else `$XDG_CACHE_HOME/huggingface/hub`, else
/// `~/.cache/huggingface/hub`.
///
/// # Errors
/// Names the location searched and the command that downloads the model. A folder without `config.json` is an error too.
pub fn locate_model(name: &str) -> Result<PathBuf, LocateError> {
    locate_with(name, |variable| std::env::var_os(variable))
}

/// [`locate_model`] with the environment as a function, so that tests need not modify the process's own.
fn locate_with(name: &str, environment: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, LocateError> {
    if name == demo::NAME {
        return Ok(demo::folder()?);
    }
    let path = Path::new(name);
    if !name.is_empty() && path.is_dir() {
        return with_config(path.to_path_buf());
    }
    if path.is_file() {
        let what = if is_gguf(name) { GGUF } else { "a file; give the model's folder, the one with config.json" };
        return Err(LocateError::NotAModel { path: path.to_path_buf(), what });
    }
    if looks_like_a_path(name) {
        return Err(LocateError::NoSuchFolder { path: path.to_path_buf() });
    }
    let (repository, revision) = name.split_once('@').unwrap_or((name, MAIN));
    if !is_hub_name(repository) || !is_revision(revision) {
        return Err(LocateError::BadName { name: name.to_owned() });
    }
    let cache = hub_cache(environment).ok_or_else(|| LocateError::NoCache { name: name.to_owned() })?;
    let folder = cache.join(format!("models--{}", repository.replace('/', "--")));
    match snapshot(&folder, revision) {
        Some(snapshot) => with_config(snapshot),
        None => {
            let looked = folder.join("snapshots");
            let (name, revision) = (repository.to_owned(), revision.to_owned());
            Err(LocateError::NotInCache { name, revision, available: entries(&looked), looked })
        }
    }
}

/// Folders of a dataset's downloaded revisions in the hub cache, `main` first.
pub(crate) fn dataset_snapshots(name: &str) -> Vec<PathBuf> {
    hub_cache(|variable| std::env::var_os(variable)).map_or_else(Vec::new, |cache| dataset_snapshots_in(&cache, name))
}

fn dataset_snapshots_in(cache: &Path, name: &str) -> Vec<PathBuf> {
    let folder = cache.join(format!("datasets--{}", name.replace('/', "--")));
    let main = snapshot(&folder, MAIN);
    let mut snapshots = files::entries(&folder.join("snapshots")).unwrap_or_default();
    snapshots.sort_by_key(|path| main.as_ref() != Some(path));
    snapshots
}

/// Max bytes of a file that holds a commit's hash.
const MAX_REFERENCE: u64 = 1 << 10;

/// The snapshot that a revision refers to: through `refs/<revision>`, or a commit's own folder.
fn snapshot(folder: &Path, revision: &str) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    let commit = files::read_to_string(&folder.join("refs").join(revision), MAX_REFERENCE).ok();
    let commit = commit.as_deref().map_or(revision, str::trim);
    let snapshot = snapshots.join(commit);
    (!commit.is_empty() && snapshot.is_dir()).then_some(snapshot)
}

/// The cache folder of the hub's own library.
fn hub_cache(raw: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let environment = |name: &str| raw(name).map(|value| expanded(value, &raw));
    let own = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].into_iter().filter_map(environment);
    let own = own.map(PathBuf::from).find(|folder| !folder.as_os_str().is_empty());
    // expanded once more, as there
    own.or_else(|| {
        Some(expanded(cache::folder_of("HF_HOME", "huggingface", environment)?.join("hub").into(), &raw).into())
    })
}

/// A path with its leading `~`, and then its variables, replaced as by Python's `expanduser` and `expandvars`: unknown variables,
/// and other users' homes, stay.
fn expanded(path: OsString, environment: impl Fn(&str) -> Option<OsString>) -> OsString {
    static VARIABLE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^~(?:$|/)|\$(?:([A-Za-z0-9_]+)|\{([^}]*)\})").expect("a constant pattern"));
    let Some(text) = path.to_str() else { return path };
    let value = |found: &Captures| {
        let slash = found[0].strip_prefix('~');
        let name = found.get(1).or(found.get(2)).map_or("HOME", |name| name.as_str());
        let value = environment(name).and_then(|value| value.into_string().ok());
        value.map_or_else(|| found[0].to_owned(), |value| value + slash.unwrap_or_default())
    };
    VARIABLE.replace_all(text, value).into_owned().into()
}

fn with_config(folder: PathBuf) -> Result<PathBuf, LocateError> {
    if folder.join("config.json").is_file() {
        return Ok(folder);
    }
    let files = entries(&folder);
    let has = |wanted: &str| files.iter().any(|name| name.ends_with(wanted));
    let what = if has("adapter_config.json") {
        "a LoRA adapter; merge it into its base model (merge_and_unload of peft) and give that folder"
    } else if files.iter().any(|name| is_gguf(name)) {
        GGUF
    } else {
        "no model folder: config.json is missing"
    };
    Err(LocateError::NotAModel { path: folder, what })
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

fn looks_like_a_path(name: &str) -> bool {
    let before_revision = name.split('@').next().unwrap_or(name); // a revision may have slashes: refs/pr/1
    let slashes = before_revision.matches('/').count();
    name.starts_with(['/', '.', '~']) || name.ends_with('/') || name.contains('\\') || slashes > 1
}

/// `org/name`, or `name` alone for the oldest models.
fn is_hub_name(name: &str) -> bool {
    let mut parts = name.split('/');
    let part = |p: &str| {
        p.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && p.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !p.contains("..")
            && !p.contains("--") // the hub forbids it: the cache writes "/" that way
    };
    parts.next().is_some_and(part) && parts.next().is_none_or(part) && parts.next().is_none()
}

/// A branch (`refs/pr/1` has slashes), tag or commit; nothing that leaves the cache.
fn is_revision(revision: &str) -> bool {
    revision.split('/').all(|part| !["", ".", ".."].contains(&part))
}

/// Names in a folder, sorted; none if it cannot be read.
fn entries(folder: &Path) -> Vec<String> {
    files::entries(folder).unwrap_or_default().iter().map(|entry| files::name(entry)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef";

    /// A cache folder with one model in it: `org/name`, `main` and `v1` at COMMIT.
    fn cache() -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--name");
        let snapshot = model.join("snapshots").join(COMMIT);
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(model.join("refs/refs/pr")).unwrap();
        std::fs::write(snapshot.join("config.json"), "{}").unwrap();
        for reference in ["main", "v1", "refs/pr/1"] {
            std::fs::write(model.join("refs").join(reference), format!("{COMMIT}\n")).unwrap();
        }
        std::fs::write(model.join("refs/gone"), "feed").unwrap();
        cache
    }

    /// An environment of these variables only.
    fn only<'a>(variables: &'a [(&str, &Path)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_os_str().to_os_string())
    }

    fn message(name: &str, variables: &[(&str, &Path)]) -> String {
        locate_with(name, only(variables)).unwrap_err().to_string()
    }

    #[test]
    fn a_folder_is_taken_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        assert_eq!(message(name, &[]), format!("{name} is no model folder: config.json is missing"));
        let file = folder.path().join("model-Q4_K_M.gguf");
        std::fs::write(&file, "GGUF").unwrap();
        for name in [name, file.to_str().unwrap()] {
            assert_eq!(message(name, &[]), format!("{name} is {GGUF}"));
        }
        std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        assert!(message(name, &[]).contains("a LoRA adapter; merge it"), "{}", message(name, &[]));
        let file = folder.path().join("config.json");
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(locate_with(name, only(&[])).unwrap(), folder.path());
        assert!(message(file.to_str().unwrap(), &[]).contains("is a file"));
    }

    #[test]
    fn a_hub_name_is_found_in_the_cache() {
        let cache = cache();
        let expected = cache.path().join("models--org--name/snapshots").join(COMMIT);
        let variables = [("HF_HUB_CACHE", cache.path())];
        for name in ["org/name", "org/name@v1", "org/name@refs/pr/1", &format!("org/name@{COMMIT}")] {
            assert_eq!(locate_with(name, only(&variables)).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn a_datasets_snapshots_start_with_main() {
        let cache = tempfile::tempdir().unwrap();
        assert!(dataset_snapshots_in(cache.path(), "org/set").is_empty());
        let snapshots = cache.path().join("datasets--org--set/snapshots");
        for commit in ["a", "b", "c"] {
            std::fs::create_dir_all(snapshots.join(commit)).unwrap();
        }
        let found = || dataset_snapshots_in(cache.path(), "org/set");
        assert_eq!(found(), ["a", "b", "c"].map(|commit| snapshots.join(commit)));
        std::fs::create_dir_all(cache.path().join("datasets--org--set/refs")).unwrap();
        std::fs::write(cache.path().join("datasets--org--set/refs/main"), "b\n").unwrap();
        assert_eq!(found(), ["b", "a", "c"].map(|commit| snapshots.join(commit)));
    }

    #[test]
    fn the_cache_is_where_the_hubs_library_has_it() {
        let path = Path::new("/a");
        let found = |variables: &[(&str, &Path)]| hub_cache(only(variables));
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("HOME", path)]), Some("/a/.cache/huggingface/hub".into()));
        assert_eq!(found(&[("HOME", path), ("XDG_CACHE_HOME", Path::new("/x"))]), Some("/x/huggingface/hub".into()));
        assert_eq!(found(&[("XDG_CACHE_HOME", path), ("HF_HOME", Path::new("/h"))]), Some("/h/hub".into()));
        assert_eq!(found(&[("HF_HOME", path), ("HF_HUB_CACHE", Path::new("/c"))]), Some("/c".into()));
        assert_eq!(found(&[("HF_HOME", path), ("HF_HUB_CACHE", Path::new(""))]), Some("/a/hub".into()));
        assert_eq!(found(&[("HF_HOME", path), ("HUGGINGFACE_HUB_CACHE", Path::new("/c"))]), Some("/c".into()));
        // Python's expanduser and expandvars
        for (value, expected) in [
            ("~/hfx", "/a/hfx"),
            ("~", "/a"),
            ("$HOME/hfx", "/a/hfx"),
            ("${HOME}/${X}y/$Y", "/a/xy/$Y"),
            ("~other/x", "~other/x"),
            ("/b/~/x", "/b/~/x"),
            ("~/$X", "/a/x"),
        ] {
            let variables = [("HOME", path), ("X", Path::new("x")), ("HF_HUB_CACHE", Path::new(value))];
            assert_eq!(found(&variables), Some(expected.into()), "{value}");
            let variables = [("HOME", path), ("X", Path::new("x")), ("HF_HOME", Path::new(value))];
            assert_eq!(found(&variables), Some(Path::new(expected).join("hub")), "{value}");
        }
        // huggingface_hub expands the default once more
        let of = |name| found(&[("A", Path::new("$X/y")), ("X", Path::new("x")), (name, Path::new("$A"))]);
        assert_eq!((of("HF_HOME"), of("HF_HUB_CACHE")), (Some("x/y/hub".into()), Some("$X/y".into())));
    }

    #[test]
    fn errors_say_what_to_do() {
        let cache = cache();
        let variables = [("HF_HUB_CACHE", cache.path())];
        let absent = message("org/other", &variables);
        assert!(absent.contains("hf download org/other") && absent.contains("models--org--other"), "{absent}");
        let revision = message("org/name@v2", &variables);
        assert!(revision.contains("hf download org/name --revision v2") && revision.contains(COMMIT), "{revision}");
        assert!(message("org/name@gone", &variables).contains("--revision gone"));
        std::fs::remove_file(cache.path().join("models--org--name/snapshots").join(COMMIT).join("config.json"))
            .unwrap();
        assert!(message("org/name", &variables).contains("config.json is missing"));
        assert!(message("org/name", &[]).contains("HF_HUB_CACHE"));
    }

    #[test]
    fn what_looks_like_a_path_is_one() {
        for name in ["./absent", "/absent/folder", "absent/", "../absent", "a/b/c"] {
            assert_eq!(message(name, &[]), format!("no such folder: {name}"));
        }
        for name in ["", "org/na me", "org/name@", "org/name@../x", "org/@main", "a--b/c"] {
            assert!(message(name, &[]).contains("neither a folder nor a model name"), "{name}");
        }
    }
}
