//! Against Go's own `net/rpc` and `encoding/gob`: the program in `tests/go-rpc` plays the other side.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use go_rpc::{CallError, Client, Limits, Server, Service, Value};
use rstest::rstest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The built program; none without Go.
fn peer() -> Option<&'static Path> {
    static PEER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let to = Path::new(env!("CARGO_TARGET_TMPDIR"));
    PEER.get_or_init(|| outside_tools::go::peer("go-rpc", to)).as_deref()
}

/// Ends with the test, whatever happens in it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // it may have ended
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Go's server and its address.
fn go_server(peer: &Path) -> (Process, String) {
    let child = Command::new(peer).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = Process(child.unwrap());
    let mut address = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    (child, address.trim().into())
}

async fn client(address: &str) -> Client {
    Client::connect(TcpStream::connect(address).await.unwrap(), Limits::default()).await.unwrap()
}

fn our_server() -> Server {
    let echo = Service::new()
        .typed_method("Everything", async |argument| Ok::<_, String>(argument))
        .method("Fail", async |text: String| Err::<(), _>(text));
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let gate = Service::new()
        .method("Wait", move |()| {
            let gate = gate.clone();
            async move { gate.acquire().await.map(|permit| permit.forget()) }
        })
        .method("Open", move |permits: i64| {
            opened.add_permits(permits.try_into().unwrap());
            async { Ok::<_, String>(()) }
        });
    Server::new(Limits::default(), [("Echo", echo), ("Gate", gate)])
}

#[tokio::test]
async fn gos_client_is_content_with_our_server() {
    let Some(peer) = peer() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { our_server().listen(listener).await });
    let output =
        tokio::process::Command::new(peer).arg("call").arg(address.to_string()).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    serving.abort();
}

#[tokio::test]
async fn a_value_of_every_kind_goes_to_go_and_back() {
    let Some(peer) = peer() else { return };
    let (_process, address) = go_server(peer);
    let client = client(&address).await;
    for _ in 0..2 {
        let sample = client.call_typed("Echo.Sample", go_rpc::ToGob::to_typed(&())).await.unwrap();
        let Value::Struct(fields) = &sample.value else { panic!("{sample:?}") };
        assert_eq!(fields.get("Int8"), Some(&Value::Int(-128)));
        assert_eq!(fields.get("Complex"), Some(&Value::Complex(1.0, -2.0)));
        assert_eq!(fields.get("NoPointer"), None);
        let checked = client.call_typed("Echo.Check", sample.clone()).await.unwrap();
        assert_eq!(checked.value, Value::Bool(true));
        let mut echoed = client.call_typed("Echo.Everything", sample.clone()).await.unwrap();
        // Go's maps have no order
        let mut expected = sample;
        for typed in [&mut echoed, &mut expected] {
            let Value::Struct(fields) = &mut typed.value else { panic!("{typed:?}") };
            fields.remove("Anys");
            fields.remove("Counts");
        }
        assert_eq!(echoed, expected);
    }
}

#[rstest]
#[case("Echo.Fail", "no such machine", "no such machine")]
#[case("Echo.Nothing", "", "rpc: can't find method Echo.Nothing")]
#[case("Other.Fail", "", "rpc: can't find service Other.Fail")]
#[case("nodot", "", "rpc: service/method request ill-formed: nodot")]
#[tokio::test]
async fn gos_errors_arrive(#[case] method: &str, #[case] argument: String, #[case] expected: &str) {
    let Some(peer) = peer() else { return };
    let (_process, address) = go_server(peer);
    let client = client(&address).await;
    let error = client.call::<()>(method, &argument).await.unwrap_err();
    assert!(matches!(&error, CallError::Server(text) if text == expected), "{error}");
}

#[tokio::test]
async fn gos_replies_come_in_any_order_until_its_process_ends() {
    let Some(peer) = peer() else { return };
    let (process, address) = go_server(peer);
    let client = client(&address).await;
    let wait = || {
        let client = client.clone();
        tokio::spawn(async move { client.call::<()>("Gate.Wait", &()).await })
    };
    let waiting: Vec<_> = (0..100).map(|_| wait()).collect();
    client.call::<()>("Gate.Open", &100_i64).await.unwrap();
    for wait in waiting {
        wait.await.unwrap().unwrap();
    }
    let last = wait();
    client.call::<()>("Gate.Open", &0_i64).await.unwrap();
    drop(process);
    assert!(matches!(last.await.unwrap(), Err(CallError::ShutDown(_))));
}
