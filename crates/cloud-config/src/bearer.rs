//! The token of a kubeconfig, as the header `Authorization` carries it.
//!
//! Editors and templates leave a line break behind a token, in a kubeconfig as in a file of its own. kube takes a token as it
//! stands: it panics over one in a kubeconfig that no header can carry, and sends no request with one of a file.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use http::{HeaderValue, Request, header::AUTHORIZATION};
use kube::config::AuthInfo;
use secrecy::{ExposeSecret as _, SecretString};

/// A field of the kubeconfig, and why it is of no use, without a letter of a token.
pub(crate) type Fault = (&'static str, String);

/// What authorizes requests by a token.
#[derive(Clone)]
pub(crate) struct Bearer {
    file: Option<PathBuf>,
    /// Of a file the last one that was good: as for client-go, a file that is gone takes no token away.
    last: Arc<Mutex<HeaderValue>>,
}

impl Bearer {
    /// None where `user` has another credential, or the token of a plugin: these are kube's matter, and so is the order.
    ///
    /// # Errors
    /// Where a token has a line break within, and where the file of one cannot be read.
    pub(crate) fn of(user: &AuthInfo) -> Result<Option<Self>, Fault> {
        let is_other = user.auth_provider.is_some() || (user.username.is_some() && user.password.is_some());
        let (file, header) = match (&user.token, &user.token_file) {
            (Some(token), _) if !is_other => {
                (None, header(token.expose_secret()).map_err(|reason| ("token", reason))?)
            }
            (None, Some(file)) if !is_other => {
                let file = PathBuf::from(file);
                let header = read(&file).map_err(|reason| ("tokenFile", reason))?;
                (Some(file), header)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { file, last: Arc::new(Mutex::new(header)) }))
    }

    /// The request with the token; with that of a file as the file is now.
    pub(crate) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock().expect("no panic while a token is read");
        if let Some(Ok(header)) = self.file.as_deref().map(read) {
            *last = header;
        }
        request.headers_mut().insert(AUTHORIZATION, last.clone());
        request
    }
}

/// The user without white space around the token.
///
/// # Errors
/// As [`Bearer::of`].
pub(crate) fn with_clean_token(mut user: AuthInfo) -> Result<AuthInfo, Fault> {
    Bearer::of(&user)?;
    user.token = user.token.map(|token| SecretString::from(token.expose_secret().trim()));
    Ok(user)
}

fn read(file: &Path) -> Result<HeaderValue, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string());
    let text = text.and_then(|text| match text.trim() {
        "" => Err("is empty".to_owned()),
        token => header(token),
    });
    text.map_err(|reason| format!("{}: {reason}", file.display()))
}

fn header(token: &str) -> Result<HeaderValue, String> {
    let refused =
        "has a line break or another control character within, as no token has: write it on one line";
    let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut value = value.map_err(|_| refused.to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_file_is_sent_as_the_file_has_it_now_and_without_its_line_break() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let put = |text: &str| fs::write(file.path(), text).unwrap();
        let user = AuthInfo { token_file: Some(file.path().display().to_string()), ..AuthInfo::default() };
        put("one\n");
        let bearer = Bearer::of(&user).unwrap().unwrap();
        let sent = || bearer.authorize(Request::new(())).headers()[AUTHORIZATION].clone();
        assert_eq!(sent(), "Bearer one");
        put(" two ");
        assert_eq!(sent(), "Bearer two");
        for bad in ["", "\n", "three\nletters"] {
            put(bad);
            assert_eq!(sent(), "Bearer two", "what was read last stays in use");
            let (field, reason) = Bearer::of(&user).err().unwrap();
            assert!(field == "tokenFile" && !reason.contains("letters"), "{field}: {reason}");
            assert!(reason.starts_with(&user.token_file.clone().unwrap()), "{reason}");
        }
    }

    #[test]
    fn a_header_with_a_token_is_shown_in_no_log() {
        let user = AuthInfo { token: Some("letters\n".into()), ..AuthInfo::default() };
        let request = Bearer::of(&user).unwrap().unwrap().authorize(Request::new(()));
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer letters");
        assert!(!format!("{request:?}").contains("letters"));
    }
}
