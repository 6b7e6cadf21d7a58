//! `cloud-config serve` as a process: what the documents tell people to type, over TLS, and nothing else.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Command as Blocking, Stdio},
    time::Duration,
};

use k8s_openapi::serde_json::{Value, from_str};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};

use super::host::{Host, How, binary, in_path, left_out};

/// The name of the server in the documents.
const NAME: &str = "kubeconfigs.example";

/// The commands of the documents about the API: how it is started, and how it is asked.
fn documented() -> (String, String) {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/credentials.md")).unwrap();
    let (_, section) = document.split_once("\n## The kubeconfig API\n").unwrap();
    let indented: Vec<_> =
        section.split("\n| ").next().unwrap().lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let text = indented.join("\n").replace("\\\n", " ");
    let command = |word: &str| {
        let found = text.lines().find(|line| line.starts_with(word));
        found.unwrap_or_else(|| panic!("no {word} in {text}")).to_owned()
    };
    (command("harvester-cloud-provider cloud-config serve "), command("curl "))
}

/// The API on loopback, in front of a Harvester; and somebody at a shell.
struct Served {
    host: Host,
    folder: TempDir,
    process: Child,
    port: u16,
    /// The administrator's.
    token: String,
    curl: String,
}

impl Served {
    /// None where the machine lacks a program.
    async fn open(flags: &str) -> Option<Self> {
        let host = Host::open().await?;
        if let Some(missing) = ["curl", "xargs", "sed"].into_iter().find(|name| in_path(name).is_none()) {
            assert!(env::var_os("CI").is_none(), "no {missing} here, and CI wants this test");
            left_out(&format!("cloud-config serve as a process needs {missing}"));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let made = rcgen::generate_simple_self_signed([NAME.to_owned(), "127.0.0.1".to_owned()]).unwrap();
        for (name, text) in [
            ("tls.crt", made.cert.pem()),
            ("tls-ca.pem", made.cert.pem()),
            ("tls.key", made.signing_key.serialize_pem()),
            ("ca.pem", host.server.ca_pem()),
        ] {
            fs::write(at(name), text).unwrap();
        }
        let kubeconfig = fs::read_to_string(host.kubeconfig()).unwrap();
        let (_, token) = kubeconfig.split_once("token: ").unwrap();
        let token = token.lines().next().unwrap().trim_matches('"').to_owned();
        let (serve, curl) = documented();
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        fs::create_dir(at("programs")).unwrap();
        symlink(binary(), at("programs/harvester-cloud-provider")).unwrap();
        // the name is nobody's
        fs::write(at(".curlrc"), format!("connect-to = \"{NAME}:8443:127.0.0.1:{port}\"\nsilent\n")).unwrap();
        let serve = serve
            .replace("--address :8443", &format!("--address 127.0.0.1:{port}"))
            .replace("https://192.0.2.1:6443", &host.address);
        assert!(serve.contains(&host.address) && serve.contains(&port.to_string()), "{serve}");
        let log = fs::File::create(at("log")).unwrap();
        let mut command = shell(&folder, &format!("exec {serve} --server {} {flags}", host.address));
        let process =
            command.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true).spawn().unwrap();
        let mut served = Self { host, folder, process, port, token, curl };
        served.listens().await;
        Some(served)
    }

    /// Waits for another process, in real time.
    async fn listens(&mut self) {
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert_eq!(self.process.try_wait().unwrap(), None, "{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// What somebody types, with an administrator's token in `TOKEN`.
    async fn types(&self, line: &str) -> (Option<i32>, String) {
        let mut command = shell(&self.folder, line);
        let told = command.env("TOKEN", &self.token).stderr(Stdio::null()).output().await.unwrap();
        (told.status.code(), String::from_utf8(told.stdout).unwrap())
    }

    /// The kubeconfig, in a file; whether it opens Harvester.
    async fn opens(&self, kubeconfig: &str) -> bool {
        let file = self.folder.path().join("made");
        fs::write(&file, kubeconfig).unwrap();
        let question = "auth can-i create persistentvolumeclaims --namespace vms";
        let (may, told) = self.host.kubectl(&format!("--kubeconfig {} {question}", file.display())).await;
        may && told == "yes\n"
    }

    /// The log, when it has ended as it is told to.
    async fn ended(mut self) -> String {
        let id = self.process.id().unwrap().to_string();
        assert!(Blocking::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert_eq!(self.process.wait().await.unwrap().code(), Some(0), "{}", self.log());
        self.log()
    }
}

fn shell(folder: &TempDir, line: &str) -> Command {
    let programs: PathBuf = folder.path().join("programs");
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder.path()).stdin(Stdio::null()).env_clear();
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    command.env("PATH", path).env("HOME", folder.path());
    command
}

/// The token in a kubeconfig.
fn token(kubeconfig: &str) -> &str {
    let (_, rest) = kubeconfig.split_once("token: ").unwrap_or_else(|| panic!("no token in {kubeconfig}"));
    rest.lines().next().unwrap().trim_matches('"')
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_commands_serve_user_data_and_a_kubeconfig_that_opens_harvester() {
    let Some(served) = Served::open("").await else { return };
    let (code, user_data) = served.types(&served.curl).await;
    assert_eq!(code, Some(0), "{user_data}{}", served.log());
    assert_eq!(user_data.matches("  path: /").count(), 2, "{user_data}");

    // raw, as the documents of Harvester process it, for Terraform for instance
    let raw = served.curl.replace(r#""outputFormat": "yaml""#, r#""outputFormat": """#);
    assert_ne!(raw, served.curl);
    let (code, text) = served.types(&format!(r"{raw} | xargs | sed 's/\\n/\n/g'")).await;
    assert!(code == Some(0) && text.starts_with("apiVersion: v1\n"), "{text}");
    assert!(served.opens(&text).await, "{text}");
    // and as ours says it
    let (_, by_jq) = served.types(&format!("{raw} | jq -r .")).await;
    assert_eq!(by_jq.trim_end(), text.trim_end());

    let query = "namespace=vms&serviceAccountName=demo";
    let got = format!(
        "curl --cacert tls-ca.pem --header \"Authorization: Bearer $TOKEN\" 'https://{NAME}:8443/v1/harvester/kubeconfig?{query}'"
    );
    let (_, got) = served.types(&format!("{got} | jq -r .")).await;
    assert_eq!(got, by_jq);
}

/// What the API makes is what the generator makes: whoever comes second writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_generator_finds_everything_as_the_api_made_it() {
    let Some(served) = Served::open("").await else { return };
    let (code, told) = served.types(&served.curl).await;
    assert_eq!(code, Some(0), "{told}");
    let revision = served.host.server.revision();
    let arguments = format!("demo vms RKE2 --server {}", served.host.address);
    served.host.works(&How::default(), "generate_addon_csi.sh", &arguments).await;
    assert_eq!(served.host.server.revision(), revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_without_tls() {
    let Some(served) = Served::open("").await else { return };
    for (line, is_answered) in [
        (served.curl.clone(), true),
        // without TLS, and with an authority that did not sign the certificate
        (served.curl.replace("https://", "http://"), false),
        (served.curl.replace("--cacert tls-ca.pem", "--cacert ca.pem"), false),
    ] {
        let (code, told) = served.types(&line).await;
        assert_eq!((code == Some(0), !told.is_empty()), (is_answered, is_answered), "{line}: {told}");
    }
}

/// At the level that tells most.
#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_in_the_log() {
    let Some(served) = Served::open("--loglevel trace").await else { return };
    let raw = served.curl.replace(r#""outputFormat": "yaml""#, r#""outputFormat": """#);
    let (_, told) = served.types(&raw).await;
    let kubeconfig: Value = from_str(&told).unwrap();
    let account = token(kubeconfig.as_str().unwrap()).to_owned();
    let admin = served.token.clone();
    let (_, refused) = served.types(&format!("TOKEN=token-of-nobody; {}", served.curl)).await;
    assert!(refused.contains("\"status\":401"), "{refused}");
    let (_, refused) = served.types(&format!("{} --header 'Impersonate-User: admin'", served.curl)).await;
    assert!(refused.contains("\"status\":400"), "{refused}");
    let log = served.ended().await;
    assert!(log.contains("gave a kubeconfig") && log.contains("refused: "), "{log}");
    for secret in [&*admin, &*account, "token-of-nobody"] {
        assert!(!log.contains(secret) && !refused.contains(secret), "{log}");
    }
}
