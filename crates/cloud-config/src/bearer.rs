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

use crate::fingerprint::Fingerprint;

/// A field of the kubeconfig, and why it is of no use, without a letter of a token.
pub(crate) type Fault = (&'static str, String);

/// What authorizes requests by a token.
#[derive(Clone)]
pub(crate) struct Bearer {
    file: Option<PathBuf>,
    /// Of a file the last one that was good, and the file as it was then: as for client-go, a file that is gone takes no token away.
    /// Each request checks by `stat` whether the file was written since. kube checks once a minute, and may send a token that has
    /// ended.
    last: Arc<Mutex<(Fingerprint, HeaderValue)>>,
}

impl Bearer {
    /// None where `user` has another credential, or the token of a plugin: these are kube's matter, and so is the order.
    ///
    /// # Errors
    /// Where a token has a line break within, and where the file of one cannot be read.
    pub(crate) fn of(user: &AuthInfo) -> Result<Option<Self>, Fault> {
        let is_other = user.auth_provider.is_some() || (user.username.is_some() && user.password.is_some());
        let (file, last) = match (&user.token, &user.token_file) {
            (Some(token), _) if !is_other => {
                let header = header(token.expose_secret()).map_err(|reason| ("token", reason))?;
                (None, (Fingerprint::default(), header))
            }
            (None, Some(file)) if !is_other => {
                let file = PathBuf::from(file);
                // before it is read: what changes meanwhile counts as changed
                let seen = Fingerprint::of([&*file]);
                let header = read(&file).map_err(|reason| ("tokenFile", reason))?;
                (Some(file), (seen, header))
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { file, last: Arc::new(Mutex::new(last)) }))
    }

    /// The request with the token; with that of a file as the file is now.
    pub(crate) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock().expect("no panic while a token is read");
        if let Some(file) = &self.file {
            let seen = Fingerprint::of([&**file]);
            if seen != last.0
                && let Ok(header) = read(file)
            {
                *last = (seen, header);
            }
        }
        request.headers_mut().insert(AUTHORIZATION, last.1.clone());
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
    use std::{io::Write as _, time::Duration};

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
    fn a_token_file_that_nobody_wrote_is_not_read_again() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "one").unwrap();
        let written = file.as_file().metadata().unwrap().modified().unwrap();
        let user = AuthInfo { token_file: Some(file.path().display().to_string()), ..AuthInfo::default() };
        let bearer = Bearer::of(&user).unwrap().unwrap();
        let sent = || bearer.authorize(Request::new(())).headers()[AUTHORIZATION].clone();
        // of the same length, and as if it were of the same moment: by this it is seen that nobody reads it
        file.write_all(b"two").unwrap();
        file.as_file().set_modified(written).unwrap();
        assert_eq!(sent(), "Bearer one");
        file.as_file().set_modified(written + Duration::from_secs(1)).unwrap();
        assert_eq!(sent(), "Bearer two");
    }

    #[test]
    fn a_header_with_a_token_is_shown_in_no_log() {
        let user = AuthInfo { token: Some("letters\n".into()), ..AuthInfo::default() };
        let request = Bearer::of(&user).unwrap().unwrap().authorize(Request::new(()));
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer letters");
        assert!(!format!("{request:?}").contains("letters"));
    }
}
