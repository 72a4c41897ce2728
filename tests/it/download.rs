//! `uqac download` against a stand-in for the hub: what arrives, what is asked for again, and what refusals are called.

use std::process::{Command, Output};

/// Runs `uqac` with this hub and this cache, and nothing else in its environment.
fn uqac(endpoint: &str, cache: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_clear().env("HF_ENDPOINT", endpoint).env("HF_HUB_CACHE", cache).env("UQAC_CACHE", cache.join("uqac"));
    command.env("HF_TOKEN", "hf_secret").args(arguments).output().unwrap()
}

#[cfg(not(feature = "download"))]
#[test]
fn a_build_without_downloads_says_how_to_get_one() {
    let output = uqac("http://127.0.0.1:1", std::path::Path::new("/no/such/folder"), &["download", "org/name"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("cargo install --path . --features download"), "{message}");
    assert!(message.contains("hf download org/name"), "{message}");
}

#[cfg(feature = "download")]
mod with_a_hub {
    use super::uqac;
    use sha1::{Digest, Sha1};
    use sha2::Sha256;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::{Path, PathBuf};
    use std::process::Output;
    use std::sync::{Arc, Mutex};

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    const WEIGHTS: &str = "model.safetensors";

    /// What the stand-in does, and what it was asked.
    #[derive(Default)]
    struct State {
        files: Vec<(String, Vec<u8>)>,
        /// Instead of the list of files.
        listing: Option<String>,
        /// Status and X-Error-Code of every request whose path has this in it.
        refusal: Option<(&'static str, u16, &'static str)>,
        /// Bytes of the weights after which a connection is cut, and how many more are closed at once.
        cut: Option<(usize, usize)>,
        closing: usize,
        /// The weights have one wrong bit.
        damaged: bool,
        /// Bytes after the weights' end.
        longer: usize,
        /// Ranges are ignored.
        whole: bool,
        requests: Vec<Request>,
    }

    #[derive(Clone, Debug)]
    struct Request {
        path: String,
        host: String,
        token: bool,
        /// First byte asked for.
        from: usize,
        /// Bytes of a file that were sent.
        sent: usize,
    }

    /// A hub with one model, `org/name`: large files are behind a redirection to another host name.
    struct Hub {
        state: Arc<Mutex<State>>,
        port: u16,
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    impl Hub {
        fn new() -> Hub {
            let abacus = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus");
            let names = ["config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"];
            let mut files: Vec<_> =
                names.map(|name| (name.to_owned(), std::fs::read(abacus.join(name)).unwrap())).into();
            files.push(("README.md".to_owned(), b"not needed".to_vec()));
            files.push(("onnx/model.onnx".to_owned(), b"not needed".to_vec()));
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let state = Arc::new(Mutex::new(State { files, ..State::default() }));
            let shared = Arc::clone(&state);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = answer(stream.unwrap(), port, &shared); // a client may go away
                }
            });
            Hub { state, port }
        }

        fn set(&self, change: impl FnOnce(&mut State)) {
            change(&mut self.state.lock().unwrap());
        }

        fn run(&self, cache: &Path, arguments: &[&str]) -> Output {
            uqac(&format!("http://127.0.0.1:{}", self.port), cache, arguments)
        }

        #[track_caller]
        fn downloads(&self, cache: &Path, name: &str) -> PathBuf {
            let output = self.run(cache, &["download", name]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
        }

        /// The command fails, says all this, and leaves nothing to load.
        #[track_caller]
        fn fails(&self, cache: &Path, says: &[&str]) {
            let output = self.run(cache, &["download", "org/name"]);
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{message}");
            for part in says {
                assert!(message.contains(part), "{message:?} does not say {part:?}");
            }
            assert!(!message.contains("hf_secret") && !message.contains("panicked"), "{message}");
            for name in ["org/name".to_owned(), format!("org/name@{COMMIT}")] {
                let output = self.run(cache, &["inspect", &name]);
                let message = String::from_utf8(output.stderr).unwrap();
                assert!(output.status.code() == Some(2) && message.contains("uqac download org/name"), "{message}");
            }
        }

        /// Requests of the weights since the last call.
        fn requests(&self) -> Vec<Request> {
            std::mem::take(&mut self.state.lock().unwrap().requests)
        }

        fn weights(&self) -> Vec<u8> {
            let state = self.state.lock().unwrap();
            state.files.iter().find(|(name, _)| name == WEIGHTS).unwrap().1.clone()
        }
    }

    fn answer(stream: TcpStream, port: u16, shared: &Mutex<State>) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let path = first.split(' ').nth(1).unwrap_or("").to_owned();
        let mut request = Request { path, host: String::new(), token: false, from: 0, sent: 0 };
        for line in lines {
            let line = line?.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("host", value)) => value.clone_into(&mut request.host),
                Some(("authorization", value)) => request.token = value == "bearer hf_secret",
                Some(("range", value)) => {
                    let from = value.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
                    request.from = from.unwrap().parse().unwrap();
                }
                _ if line.is_empty() => break,
                _ => (),
            }
        }
        let mut state = shared.lock().unwrap();
        if state.closing > 0 {
            state.closing -= 1;
            return Ok(());
        }
        request.sent = respond(stream, port, &request, &mut state)?;
        state.requests.push(request);
        Ok(())
    }

    /// The bytes of a file that were sent.
    fn respond(mut stream: TcpStream, port: u16, request: &Request, state: &mut State) -> std::io::Result<usize> {
        let mut head = |status: u16, headers: &str, len: usize| {
            let end = format!("Content-Length: {len}\r\nConnection: close\r\n\r\n");
            write!(stream, "HTTP/1.1 {status} stand-in\r\n{headers}{end}")
        };
        let path = request.path.as_str();
        if let Some((_, status, code)) = state.refusal.filter(|(part, ..)| path.contains(part)) {
            let header = if code.is_empty() { String::new() } else { format!("X-Error-Code: {code}\r\n") };
            head(status, &header, 0)?;
            return Ok(0);
        }
        if path.starts_with("/api/models/org/name/revision/") {
            let text = state.listing.clone().unwrap_or_else(|| listing(&state.files));
            head(200, "", text.len())?;
            stream.write_all(text.as_bytes())?;
            return Ok(0);
        }
        if path == format!("/org/name/resolve/{COMMIT}/{WEIGHTS}") {
            head(302, &format!("Location: http://localhost:{port}/store/{WEIGHTS}\r\n"), 0)?;
            return Ok(0);
        }
        let name = path.rsplit('/').next().unwrap();
        let mut bytes = state.files.iter().find(|(n, _)| n == name).unwrap().1.clone();
        let large = name == WEIGHTS;
        if large {
            bytes[1000] ^= u8::from(state.damaged);
            bytes.resize(bytes.len() + state.longer, 0);
        }
        let part = if state.whole { &bytes[..] } else { &bytes[request.from..] };
        let status = if request.from > 0 && !state.whole { 206 } else { 200 };
        head(status, "", part.len())?;
        let mut sent = part.len();
        if let Some((after, closing)) = state.cut.take_if(|_| large) {
            sent = after.min(sent);
            state.closing = closing;
        }
        stream.write_all(&part[..sent])?;
        Ok(sent)
    }

    /// The model's files as the hub lists them.
    fn listing(files: &[(String, Vec<u8>)]) -> String {
        let sibling = |(name, bytes): &(String, Vec<u8>)| {
            let size = bytes.len();
            let git = hex(&Sha1::new().chain_update(format!("blob {size}\0")).chain_update(bytes).finalize());
            let lfs = match name == WEIGHTS {
                true => serde_json::json!({"sha256": hex(&Sha256::digest(bytes)), "size": size, "pointerSize": 134}),
                false => serde_json::Value::Null,
            };
            let mut sibling = serde_json::json!({"rfilename": name, "size": size, "blobId": git});
            if !lfs.is_null() {
                sibling["lfs"] = lfs;
            }
            sibling
        };
        let siblings: Vec<_> = files.iter().map(sibling).collect();
        serde_json::json!({"id": "org/name", "sha": COMMIT, "siblings": siblings}).to_string()
    }

    #[test]
    fn a_model_is_downloaded_once_and_found_by_its_name() {
        let (hub, cache) = (Hub::new(), tempfile::tempdir().unwrap());
        let folder = hub.downloads(cache.path(), "org/name");
        assert_eq!(folder, cache.path().join("models--org--name/snapshots").join(COMMIT));
        assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), hub.weights());
        assert!(!folder.join("README.md").exists() && !folder.join("onnx").exists());
        let inspected = hub.run(cache.path(), &["inspect", "org/name"]);
        assert!(inspected.status.success(), "{}", String::from_utf8_lossy(&inspected.stderr));
        let requests = hub.requests();
        assert!(requests.iter().all(|request| !request.path.contains("README") && !request.path.contains("onnx")));
        // the token is the hub's, and not told to where it redirects
        for request in &requests {
            assert_eq!(request.token, request.host.starts_with("127.0.0.1"), "{request:?}");
        }
        assert!(requests.iter().any(|request| request.host.starts_with("localhost")));

        assert_eq!(hub.downloads(cache.path(), "org/name"), folder);
        let again = hub.requests();
        assert_eq!(again.len(), 1, "only the list is asked for again: {again:?}");
        // a branch with a slash is one part of the address, and a revision of its own in the cache
        hub.downloads(cache.path(), "org/name@refs/pr/1");
        assert_eq!(hub.requests()[0].path, "/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true");
        assert!(hub.run(cache.path(), &["inspect", "org/name@refs/pr/1"]).status.success());
    }

    #[test]
    fn an_interrupted_download_goes_on_from_where_it_was() {
        let (hub, cache) = (Hub::new(), tempfile::tempdir().unwrap());
        let size = hub.weights().len();
        hub.set(|state| state.cut = Some((1_000_000, 100)));
        hub.fails(cache.path(), &[WEIGHTS, "run the same command again"]);
        let first: usize = hub.requests().iter().filter(|r| r.path.ends_with(WEIGHTS)).map(|r| r.sent).sum();
        assert_eq!(first, 1_000_000);
        hub.set(|state| state.closing = 0);
        hub.downloads(cache.path(), "org/name");
        let second: Vec<Request> = hub.requests().into_iter().filter(|r| r.sent > 0).collect();
        assert_eq!(second.len(), 1, "the small files are there: {second:?}");
        assert_eq!((second[0].from, second[0].sent), (first, size - first));
        assert!(hub.run(cache.path(), &["inspect", "org/name"]).status.success());
    }

    #[test]
    fn a_cut_connection_is_opened_again() {
        for whole in [false, true] {
            let (hub, cache) = (Hub::new(), tempfile::tempdir().unwrap());
            hub.set(|state| (state.cut, state.whole) = (Some((500_000, 1)), whole));
            let folder = hub.downloads(cache.path(), "org/name");
            assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), hub.weights());
            let sent: Vec<(usize, usize)> =
                hub.requests().iter().filter(|r| r.path.starts_with("/store")).map(|r| (r.from, r.sent)).collect();
            let size = hub.weights().len();
            // a server without ranges sends all of it again
            assert_eq!(sent, [(0, 500_000), (500_000, if whole { size } else { size - 500_000 })]);
        }
    }

    #[test]
    fn what_arrives_wrong_is_not_kept() {
        let (hub, cache) = (Hub::new(), tempfile::tempdir().unwrap());
        hub.set(|state| state.damaged = true);
        hub.fails(cache.path(), &[WEIGHTS, "wrong checksum", &hex(&Sha256::digest(hub.weights()))]);
        hub.set(|state| (state.damaged, state.longer) = (false, 100));
        hub.fails(cache.path(), &[WEIGHTS, &format!("expected {} bytes", hub.weights().len())]);
        let blobs = cache.path().join("models--org--name/blobs");
        for blob in std::fs::read_dir(&blobs).unwrap() {
            let blob = blob.unwrap();
            let unfinished = blob.file_name().to_string_lossy().ends_with(".incomplete");
            assert!(!unfinished || blob.metadata().unwrap().len() == 0, "{blob:?}");
        }
        hub.set(|state| state.longer = 0);
        hub.downloads(cache.path(), "org/name");
        // an update that fails leaves what was there
        hub.set(|state| {
            state.files.iter_mut().find(|(name, _)| name == WEIGHTS).unwrap().1[5000] ^= 1;
            let text = listing(&state.files).replace(COMMIT, &COMMIT.replace('0', "f"));
            (state.listing, state.damaged) = (Some(text), true);
        });
        let output = hub.run(cache.path(), &["download", "org/name"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(hub.run(cache.path(), &["inspect", "org/name"]).status.success());
    }

    #[test]
    fn refusals_say_what_to_do() {
        let (hub, cache) = (Hub::new(), tempfile::tempdir().unwrap());
        for (path, status, code, says) in [
            ("/api/", 404, "RepoNotFound", &["has no model org/name", "HF_TOKEN"][..]),
            ("/api/", 401, "RepoNotFound", &["has no model org/name", "private", "hf auth login"]),
            ("/api/", 404, "RevisionNotFound", &["org/name has no revision \"main\""]),
            ("/api/", 401, "", &["does not accept the token", "HF_TOKEN"]),
            ("/resolve/", 403, "GatedRepo", &["org/name is gated", "accept its terms", "/org/name", "HF_TOKEN"]),
            ("/resolve/", 503, "", &["answered 503", "goes on"]),
        ] {
            hub.set(|state| state.refusal = Some((path, status, code)));
            hub.fails(cache.path(), says);
        }
        let output = uqac("http://127.0.0.1:1", cache.path(), &["download", "org/name"]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("http://127.0.0.1:1/api/models/org/name"), "{message}");
        let output = hub.run(cache.path(), &["download", "not a name"]);
        assert!(String::from_utf8(output.stderr).unwrap().contains("neither a folder nor a model name"));
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let (hub, cache) = (Hub::new(), tempfile::tempdir().unwrap());
        let model = |siblings: &str| format!(r#"{{"sha": "{COMMIT}", "siblings": [{siblings}]}}"#);
        let config = r#"{"rfilename": "config.json", "size": 2, "blobId": "../../../../config"}"#;
        let weights = format!(r#"{{"rfilename": "{WEIGHTS}", "size": 2}}"#);
        for (listing, says) in [
            ("<html>".to_owned(), &["HF_ENDPOINT"][..]),
            (r#"{"sha": "../../x", "siblings": []}"#.to_owned(), &["sha: expected a commit"]),
            (model(""), &["org/name has no config.json"]),
            (model(config), &["has no weights as safetensors", "config.json"]),
            (model(&format!("{config}, {weights}")), &["config.json: expected a checksum of 40 digits"]),
        ] {
            hub.set(|state| state.listing = Some(listing));
            hub.fails(cache.path(), says);
        }
        assert!(!cache.path().join("models--org--name").exists());
    }
}
