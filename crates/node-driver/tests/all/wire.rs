//! The process as rancher-machine has it: started with its token, spoken to over its protocol, watched at its end.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use go_rpc::{Client, FromGob, Limits, ToGob};
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule, When};
use tokio::net::TcpStream;

use crate::{
    beside,
    support::{Harvester, MACHINE, as_gob, long_user_data, options},
};

/// A plugin process; it ends with the test.
pub(crate) struct Plugin {
    child: Child,
    /// Its standard output, which the test reads at the end, if it reads it at all.
    out: Option<BufReader<ChildStdout>>,
    address: String,
    pub(crate) client: Client,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // it may have ended
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The built driver. A wrapper of rustc that is a shell script loses Cargo's variable, for the dashes in its name; then it
/// is found where Cargo puts it.
pub(crate) fn path() -> PathBuf {
    let told = option_env!("CARGO_BIN_EXE_docker-machine-driver-harvester").map(PathBuf::from);
    told.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("docker-machine-driver-harvester")
    })
}

pub(crate) fn program() -> Command {
    quiet(Command::new(path()))
}

fn quiet(mut command: Command) -> Command {
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Plugin {
    pub(crate) async fn start(kubeconfig: &str) -> Self {
        Self::start_as(program(), kubeconfig).await
    }

    async fn start_as(mut command: Command, kubeconfig: &str) -> Self {
        command.env("MACHINE_PLUGIN_TOKEN", "42").env("MACHINE_PLUGIN_DRIVER_NAME", "harvester");
        if !kubeconfig.is_empty() {
            command.env("HARVESTER_KUBECONFIG_CONTENT", kubeconfig);
        }
        // rancher-machine's own arguments
        let mut child =
            command.args(["create", "--driver", "harvester", "--unknown=x", MACHINE]).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut address = String::new();
        out.read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let client = connect(&address).await;
        Self { child, out: Some(out), address, client }
    }

    pub(crate) async fn call<R: FromGob>(&self, method: &str, argument: &impl ToGob) -> Result<R, String> {
        let called = self.client.call(&format!("RPCServerDriver.{method}"), argument).await;
        called.map_err(|error| error.to_string())
    }

    pub(crate) async fn ask<R: FromGob>(&self, method: &str) -> Result<R, String> {
        self.call(method, &()).await
    }

    /// What rancher-machine does before anything else.
    pub(crate) async fn greet(&self, store: &Path) {
        assert_eq!(self.ask("GetVersion").await, Ok(1_i64));
        let raw = json!({"MachineName": MACHINE, "StorePath": store}).to_string().into_bytes();
        self.call::<()>("SetConfigRaw", &raw).await.unwrap();
        assert_eq!(self.ask("GetMachineName").await, Ok(MACHINE.to_owned()));
        assert_eq!(self.ask("DriverName").await, Ok("harvester".to_owned()));
    }

    pub(crate) async fn set_options(&self, changes: &[(&str, Value)]) -> Result<(), String> {
        let given = as_gob(&options(changes));
        let called = self.client.call_typed("RPCServerDriver.SetConfigFromFlags", given).await;
        called.map(drop).map_err(|error| error.to_string())
    }

    /// Waits for the end. The answer is the exit code and the rest of its output.
    pub(crate) async fn ended(mut self) -> (Option<i32>, String) {
        tokio::task::spawn_blocking(move || {
            let code = self.child.wait().unwrap().code();
            let mut said = String::new();
            if let Some(mut out) = self.out.take() {
                std::io::Read::read_to_string(&mut out, &mut said).unwrap();
            }
            (code, said)
        })
        .await
        .unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn connect(address: &str) -> Client {
    Client::connect(TcpStream::connect(address).await.unwrap(), Limits::default()).await.unwrap()
}

// docs/contract/node-driver.md#1.6: a plugin that ends early hangs its parent for ever
#[tokio::test]
async fn more_connections_than_it_can_have_do_not_end_it() {
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", r#"ulimit -n 32 && exec "$0" "$@""#]).arg(path());
    let plugin = Plugin::start_as(quiet(limited), "").await;
    let mut crowd = vec![];
    for _ in 0..40 {
        crowd.push(TcpStream::connect(&plugin.address).await.unwrap());
        assert_eq!(plugin.ask("GetVersion").await, Ok(1_i64));
    }
    drop(crowd);
    let another = connect(&plugin.address).await;
    let version: i64 = another.call("RPCServerDriver.GetVersion", &()).await.unwrap();
    assert_eq!(version, 1);
    plugin.ask::<()>("Close").await.unwrap();
    assert_eq!(plugin.ended().await.0, Some(0));
}

#[tokio::test]
async fn a_machine_is_made_and_removed_by_the_process() {
    let harvester = Harvester::start().await.with_machines().await;
    let kubeconfig = harvester.serve().await;
    let store = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(&kubeconfig).await;
    plugin.greet(store.path()).await;
    plugin.set_options(&[("harvester-kubeconfig-content", json!(kubeconfig))]).await.unwrap();
    plugin.ask::<()>("PreCreateCheck").await.unwrap();
    let saved: Vec<u8> = plugin.ask("GetConfigRaw").await.unwrap();
    plugin.ask::<()>("Heartbeat").await.unwrap();
    plugin.ask::<()>("Create").await.unwrap();
    assert_eq!(plugin.ask("GetState").await, Ok(1_i64));
    let address: String = plugin.ask("GetIP").await.unwrap();
    assert_eq!(plugin.ask("GetURL").await, Ok(format!("tcp://{address}:2376")));
    let key: String = plugin.ask("GetSSHKeyPath").await.unwrap();
    let private = std::fs::read_to_string(&key).unwrap();
    assert!(private.starts_with("-----BEGIN RSA PRIVATE KEY-----"), "{key}");
    plugin.ask::<()>("Close").await.unwrap();
    let (code, said) = plugin.ended().await;
    assert_eq!((code, said.as_str()), (Some(0), ""), "nothing worth a line happened");

    // another process, with what the first save stored and a renewed kubeconfig from its environment
    let mut stored: Value = serde_json::from_slice(&saved).unwrap();
    stored["KubeConfigContent"] = json!("expired");
    let plugin = Plugin::start(&kubeconfig).await;
    plugin.call::<()>("SetConfigRaw", &stored.to_string().into_bytes()).await.unwrap();
    plugin.ask::<()>("Remove").await.unwrap();
    assert!(harvester.vm().await.is_null());
    plugin.ask::<()>("Close").await.unwrap();
    assert_eq!(plugin.ended().await.0, Some(0));
}

#[tokio::test]
async fn connections_share_one_driver_and_their_end_changes_nothing() {
    let store = tempfile::tempdir().unwrap();
    let plugin = Plugin::start("").await;
    let other = connect(&plugin.address).await;
    plugin.greet(store.path()).await;
    let old_name: String = other.call("RpcServerDriver.GetMachineName", &()).await.unwrap();
    assert_eq!(old_name, MACHINE);
    plugin.client.close();
    for (method, text) in [
        ("RPCServerDriver.Upgrade", "rpc: can't find method RPCServerDriver.Upgrade"),
        ("Other.GetVersion", "rpc: can't find service Other.GetVersion"),
        ("RPCServerDriver.GetIPv6", "IPv6 address is not set"),
    ] {
        let error = other.call::<String>(method, &()).await.unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    other.call::<()>("RPCServerDriver.Close", &()).await.unwrap();
    assert_eq!(plugin.ended().await.0, Some(0));
}

#[test]
fn a_client_that_is_gone_ends_the_process_with_1_and_undoes_nothing() {
    beside::outcome_of("wire: client gone");
}

pub(crate) async fn a_client_goes_away() {
    let harvester = Harvester::start().await;
    let kubeconfig = harvester.serve().await;
    let store = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(&kubeconfig).await;
    plugin.greet(store.path()).await;
    plugin.set_options(&[("harvester-kubeconfig-content", json!(kubeconfig))]).await.unwrap();
    plugin.ask::<()>("PreCreateCheck").await.unwrap();
    // no machine runs here, so this waits until the process ends
    let error = plugin.ask::<()>("Create").await.unwrap_err();
    assert!(error.contains("connection is shut down"), "{error}");
    assert_eq!(plugin.ended().await.0, Some(1));
    assert!(!harvester.vm().await.is_null());
}

#[tokio::test]
async fn a_driver_that_nobody_listens_to_works_on() {
    let harvester = Harvester::start().await.with_machines().await;
    let kubeconfig = harvester.serve().await;
    let store = tempfile::tempdir().unwrap();
    let given = [("harvester-kubeconfig-content", json!(kubeconfig))];
    // the second one has something to say: that it goes on with the machine of the first
    for _ in 0..2 {
        let mut plugin = Plugin::start(&kubeconfig).await;
        drop(plugin.out.take());
        plugin.greet(store.path()).await;
        plugin.set_options(&given).await.unwrap();
        plugin.ask::<()>("PreCreateCheck").await.unwrap();
        plugin.ask::<()>("Create").await.unwrap();
        plugin.ask::<()>("Close").await.unwrap();
        assert_eq!(plugin.ended().await.0, Some(0));
    }
}

#[test]
fn without_the_token_it_explains_itself_at_once() {
    let told = program().output().unwrap();
    let text = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(1));
    assert!(told.stdout.is_empty(), "no address");
    for part in ["plugin API version 1", "check", "render", "--harvester-vm-labels"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = program().env("MACHINE_PLUGIN_TOKEN", "41").output().unwrap();
    assert_eq!(told.status.code(), Some(1));
}

/// A proxy that leads every CONNECT to the server, and tells where it was asked for.
async fn proxy(to: SocketAddr) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut stream = tokio::io::BufReader::new(stream);
                let mut asked = String::new();
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).await.unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    asked.push_str(&line);
                }
                // the test may have heard enough
                tell.send(asked.lines().next().unwrap_or_default().to_owned()).ok();
                stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                let mut server = TcpStream::connect(to).await.unwrap();
                // how a connection ends is no concern of the proxy
                tokio::io::copy_bidirectional(&mut stream, &mut server).await.ok();
            });
        }
    });
    (address, told)
}

/// Runs the pre-flight with more in its environment; the answer is what it says, good or bad.
async fn checked(kubeconfig: &str, environment: &[(&str, &str)]) -> String {
    let mut command = program();
    command.env("HARVESTER_KUBECONFIG_CONTENT", kubeconfig).envs(environment.iter().copied());
    command.args(["check", "--harvester-vm-namespace=shop", "--harvester-disk-size=20"]);
    command.args(["--harvester-image-name=default/leap", "--harvester-network-name=default/vlan1", "demo-1"]);
    let told = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    String::from_utf8(told.stdout).unwrap() + &String::from_utf8(told.stderr).unwrap()
}

const GOOD: &str = "machine demo-1 can be made\n";

// kube 5.0 compares NO_PROXY with the proxy's address; here it is about the server's
#[tokio::test]
async fn a_proxy_is_used_unless_no_proxy_names_the_server() {
    let harvester = Harvester::start().await;
    let kubeconfig = harvester.serve().await;
    let server =
        kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: https://")).unwrap().to_owned();
    let (proxy, mut told) = proxy(server.parse().unwrap()).await;
    let behind = kubeconfig.replace(
        &format!("server: https://{server}"),
        "tls-server-name: 127.0.0.1\n    server: https://harvester.example:6443",
    );
    assert_eq!(checked(&behind, &[("HTTPS_PROXY", &proxy)]).await, GOOD);
    assert_eq!(told.recv().await.unwrap(), "CONNECT harvester.example:6443 HTTP/1.1");
    // without the proxy there is no such host
    let text =
        checked(&behind, &[("HTTPS_PROXY", &proxy), ("NO_PROXY", "other.example,harvester.example")]).await;
    assert!(text.contains("Harvester does not answer"), "{text}");
    // and a dead proxy does not matter where it does not apply
    assert_eq!(
        checked(&kubeconfig, &[("HTTPS_PROXY", "http://127.0.0.1:9"), ("NO_PROXY", "127.0.0.1")]).await,
        GOOD
    );
}

#[tokio::test]
async fn without_an_authority_in_the_kubeconfig_the_folder_of_rancher_is_trusted() {
    let harvester = Harvester::start().await;
    let kubeconfig = harvester.serve().await;
    let folder = tempfile::tempdir().unwrap();
    let without: String = kubeconfig
        .lines()
        .filter(|line| !line.contains("certificate-authority-data"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let trusting = [("SSL_CERT_DIR", folder.path().to_str().unwrap())];
    let text = checked(&without, &trusting).await;
    assert!(text.contains("certificate"), "{text}");
    std::fs::write(folder.path().join("cacerts.pem"), harvester.server.ca_pem()).unwrap();
    assert_eq!(checked(&without, &trusting).await, GOOD);
}

#[tokio::test]
async fn the_pre_flight_can_be_had_without_rancher_machine() {
    let harvester = Harvester::start().await;
    let kubeconfig = harvester.serve().await;
    let run = move |image: &'static str| {
        let mut command = program();
        command.env("HARVESTER_KUBECONFIG_CONTENT", &kubeconfig);
        command.args(["check", "--harvester-vm-namespace=shop", "--harvester-disk-size=20", image]);
        command.args(["--harvester-network-name=default/vlan1", "demo-1"]);
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let told = run("--harvester-image-name=default/leap").await.unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout), "machine demo-1 can be made\n", "{told:?}");
    let told = run("--harvester-image-name=default/other").await.unwrap();
    assert_eq!(told.status.code(), Some(1));
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(text.contains("read image default/other: "), "{text}");
}

/// SIGKILL while the server holds an answer back, and a new process with the same store.
#[rstest::rstest]
#[case::making_the_vm("virtualmachines")]
#[case::making_the_secret("secrets")]
#[tokio::test]
async fn a_killed_process_is_followed_by_one_that_goes_on(#[case] resource: &str) {
    let harvester = Harvester::start().await.with_machines().await;
    let kubeconfig = harvester.serve().await;
    let store = tempfile::tempdir().unwrap();
    let given =
        [("harvester-kubeconfig-content", json!(kubeconfig)), ("harvester-user-data", long_user_data())];
    let mut rule = Rule::new(Answer::Delay(Duration::from_secs(3600)));
    (rule.verb, rule.resource, rule.when) = (Some("create".into()), Some(resource.into()), When::After);
    harvester.server.faults().add(rule);
    let mut plugin = Plugin::start(&kubeconfig).await;
    plugin.greet(store.path()).await;
    plugin.set_options(&given).await.unwrap();
    plugin.ask::<()>("PreCreateCheck").await.unwrap();
    let client = plugin.client.clone();
    let making = tokio::spawn(async move { client.call::<()>("RPCServerDriver.Create", &()).await });
    let hit = async {
        while harvester.server.faults().hits() == 0 {
            tokio::task::yield_now().await;
        }
    };
    hit.await;
    plugin.kill();
    making.await.unwrap().unwrap_err();
    harvester.server.faults().clear();
    let uid = harvester.vm().await["metadata"]["uid"].clone();
    assert!(uid.is_string(), "it was made before the end");

    let plugin = Plugin::start(&kubeconfig).await;
    plugin.greet(store.path()).await;
    plugin.set_options(&given).await.unwrap();
    plugin.ask::<()>("PreCreateCheck").await.unwrap();
    plugin.ask::<()>("Create").await.unwrap();
    assert_eq!(harvester.vm().await["metadata"]["uid"], uid, "the same VM");
    plugin.ask::<()>("Remove").await.unwrap();
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
    plugin.ask::<()>("Close").await.unwrap();
    let (code, said) = plugin.ended().await;
    assert_eq!(code, Some(0));
    assert!(said.contains("going on with VM shop/"), "{said}");
}
