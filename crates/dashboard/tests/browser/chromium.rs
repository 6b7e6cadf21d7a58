//! Debian's Chromium without a window, driven over a pipe by the DevTools protocol: JSON messages that a zero byte ends.

use std::{
    env,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// A browser that says nothing for so long hangs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// The program, where the machine has it.
pub(crate) fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join("chromium")).find(|file| file.is_file())
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: File,
    answers: Receiver<Value>,
    last: u64,
    session: String,
    /// Errors of scripts, and what the page's policy forbade.
    pub(crate) complaints: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Browser {
    pub(crate) fn start(program: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            path
        };
        let (requests, answers) = (pipe("requests"), pipe("answers"));
        // it reads from descriptor 3 and writes to 4
        let script = r#"requests=$1 answers=$2; shift 2; exec "$@" 3< "$requests" 4> "$answers""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args([&requests, &answers]).arg(program);
        command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]);
        command.args(["--disable-component-update", "--disable-sync", "--hide-scrollbars", "about:blank"]);
        // what it says about the desktop that it misses is nobody's concern
        command.env("HOME", folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let requests = File::options().write(true).open(requests).unwrap();
        let mut reader = BufReader::new(File::open(answers).unwrap());
        let (tell, answers) = channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while reader.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                let message = std::mem::take(&mut message);
                let value = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message)).unwrap();
                if tell.send(value).is_err() {
                    return;
                }
            }
        });
        let (last, session, complaints) = (0, String::new(), Vec::new());
        let mut browser = Self { child, requests, answers, last, session, complaints, _folder: folder };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].take();
        let session = json!({"targetId": target, "flatten": true});
        let session = browser.call("Target.attachToTarget", session)["sessionId"].take();
        browser.session = session.as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// The result of a method.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            request["sessionId"] = self.session.as_str().into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self.answers.recv_timeout(ANSWERS_WITHIN);
            let mut message = message.unwrap_or_else(|_| panic!("no answer of the browser: {request}"));
            if message["id"] == self.last {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            if ["Runtime.exceptionThrown", "Log.entryAdded"].iter().any(|event| message["method"] == *event) {
                self.complaints.push(message["params"].to_string());
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// What an expression of JavaScript has for its value.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until the page is so. A page that never is ends the test.
    pub(crate) fn until(&mut self, expression: &str) {
        let wait = format!(
            "new Promise((done) => {{
                const look = () => {{ if ({expression}) {{ observer.disconnect(); done(true); }} }};
                const observer = new MutationObserver(look);
                observer.observe(document, {{subtree: true, childList: true, characterData: true, attributes: true}});
                look();
            }})"
        );
        assert_eq!(self.value(&wait), true);
    }

    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "code": key}));
        }
    }
}
