//! Requests to the hub, and what its refusals mean.

use super::super::{hub_home, variable};
use super::DownloadError;
use crate::files;
use std::ffi::OsString;
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Time to connect, and for the next bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Max bytes of a file with a token.
const MAX_TOKEN: u64 = 1 << 10;

/// One model at one revision.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    repository: String,
    revision: String,
}

impl Client {
    pub fn new(repository: &str, revision: &str, environment: impl Fn(&str) -> Option<OsString>) -> Client {
        let text = |variable| environment(variable).and_then(|value| value.into_string().ok());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost) // large files are elsewhere, under signed addresses
            .accept_encoding("identity") // positions are those of the file
            .user_agent(concat!("uqac/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE));
        Client {
            agent: config.build().into(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: text("HF_TOKEN").or_else(|| stored_token(environment)).map(|token| token.trim().to_owned()),
            repository: repository.to_owned(),
            revision: revision.to_owned(),
        }
    }

    pub fn name(&self) -> String {
        self.repository.clone()
    }

    /// The address and the text of the list of the model's files.
    pub fn listing(&self) -> Result<(String, String), DownloadError> {
        let (endpoint, name, revision) = (&self.endpoint, &self.repository, encoded(&self.revision));
        let url = format!("{endpoint}/api/models/{name}/revision/{revision}?blobs=true");
        let mut response = self.get(&url, 0)?;
        let body = response.body_mut().with_config().limit(files::MAX_SETTINGS);
        let text = body.read_to_string().map_err(|error| network(&url, &error))?;
        Ok((url, text))
    }

    /// A file from byte `from` on, and its address. The server may answer with the whole file all the same (status 200).
    pub fn file(&self, commit: &str, file: &str, from: u64) -> Result<(String, Response<Body>), DownloadError> {
        let url = format!("{}/{}/resolve/{commit}/{file}", self.endpoint, self.repository);
        let response = self.get(&url, from)?;
        Ok((url, response))
    }

    fn get(&self, url: &str, from: u64) -> Result<Response<Body>, DownloadError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let response = request.call().map_err(|error| network(url, &error))?;
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            status => Err(self.refusal(url, status, &response)),
        }
    }

    /// The hub says in a header what a status stands for; a model that does not exist looks like a private one.
    fn refusal(&self, url: &str, status: u16, response: &Response<Body>) -> DownloadError {
        let code = response.headers().get("X-Error-Code").and_then(|code| code.to_str().ok()).unwrap_or("");
        let (name, endpoint, revision) = (self.repository.clone(), self.endpoint.clone(), self.revision.clone());
        match (status, code) {
            (401 | 403, "GatedRepo") => DownloadError::Gated { name, endpoint },
            (404, "RevisionNotFound") => DownloadError::NoRevision { name, revision, endpoint },
            (401, "") if self.token.is_some() => DownloadError::Token { endpoint },
            (401 | 403 | 404, _) => DownloadError::NoModel { name, endpoint },
            _ => DownloadError::Status { url: url.to_owned(), status },
        }
    }
}

/// What `hf auth login` has stored.
fn stored_token(environment: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let path = variable(&environment, "HF_TOKEN_PATH").or_else(|| Some(hub_home(&environment)?.join("token")))?;
    files::read_to_string(&path, MAX_TOKEN).ok().filter(|token| !token.trim().is_empty())
}

pub fn network(url: &str, error: &dyn std::fmt::Display) -> DownloadError {
    DownloadError::Network { url: url.to_owned(), why: error.to_string() }
}

/// As one part of an address's path.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
