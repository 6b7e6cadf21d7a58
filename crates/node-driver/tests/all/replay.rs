//! What Go's client was recorded to send, sent to our plugin: whatever does not depend on a cluster is answered with the
//! recorded value, and everything else is answered.

use std::sync::Arc;

use go_rpc::{Decoder, FromGob as _, Limits, Struct, Typed, Value as Gob, next_value};
use rstest::rstest;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use node_driver::plugin::{self, Shutdown};

use crate::support::Harvester;

const UPGRADE: &[u8] = b"CONNECT /_goRPC_ HTTP/1.0\n\n";
const UPGRADED: &[u8] = b"HTTP/1.0 200 Connected to Go RPC\n\n";

/// Calls whose answer is the driver's alone.
const OWN: [&str; 7] =
    ["GetVersion", "DriverName", "GetMachineName", "GetSSHPort", "GetIPv6", "SetConfigRaw", "Close"];

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The plugin's side of a connection, as its client reads it.
struct Replies {
    stream: TcpStream,
    decoder: Decoder,
    unread: Vec<u8>,
}

impl Replies {
    async fn next(&mut self) -> Typed {
        loop {
            let mut rest = &self.unread[..];
            // a value may need more than what came so far; the types that came with it are known then
            let found = next_value(&mut self.decoder, &mut rest).unwrap_or_default();
            self.unread = rest.to_vec();
            if let Some(value) = found {
                return value;
            }
            let mut more = [0; 4096];
            let count = self.stream.read(&mut more).await.unwrap();
            assert!(count > 0, "the plugin hung up");
            self.unread.extend(&more[..count]);
        }
    }
}

/// The recorded value as it is on the wire; none if the recording does not name it.
fn expected(step: &Value) -> Option<Gob> {
    match &step["result"] {
        Value::Number(number) => number.as_i64().map(Gob::Int),
        Value::String(text) if text.starts_with("no value") => Some(Struct::new().into()),
        Value::String(text) => Some(Gob::from(text.as_str())),
        _ => None,
    }
}

#[rstest]
#[case::create(include_str!("../../../go-rpc/tests/vectors/04-session-create.json"))]
#[case::getters(include_str!("../../../go-rpc/tests/vectors/05-session-getters.json"))]
#[case::remove(include_str!("../../../go-rpc/tests/vectors/06-session-rm.json"))]
#[case::errors(include_str!("../../../go-rpc/tests/vectors/07-session-errors.json"))]
#[tokio::test]
async fn recorded_calls_of_go_are_answered(#[case] session: &str) {
    let session: Vec<Value> = serde_json::from_str(session).unwrap();
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = Arc::clone(&harvester.driver(store.path()));
    let mut line = vec![];
    let listener = plugin::listen(&mut line).unwrap();
    let serving = tokio::spawn(async move { plugin::serve(listener, driver).await });
    let mut stream = TcpStream::connect(String::from_utf8(line).unwrap().trim()).await.unwrap();
    stream.write_all(UPGRADE).await.unwrap();
    let mut answer = vec![0; UPGRADED.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, UPGRADED);

    let mut replies = Replies { stream, decoder: Decoder::new(Limits::default()), unread: vec![] };
    let calls = session.iter().filter(|step| step["request"].is_string() && step["step"].is_null());
    for (seq, step) in (0_u64..).zip(calls) {
        let call = step["call"].as_str().unwrap_or("RPCServerDriver.SetConfigFromFlags");
        replies.stream.write_all(&bytes(&step["request"])).await.unwrap();
        let Gob::Struct(mut header) = replies.next().await.value else { panic!("{call}: no header") };
        let body = replies.next().await.value;
        assert_eq!(header.take::<String>("ServiceMethod").unwrap(), call);
        assert_eq!(header.take::<u64>("Seq").unwrap(), seq, "{call}");
        let error = String::from_value(header.remove("Error").unwrap_or_else(|| Gob::from(""))).unwrap();
        let method = call.rsplit('.').next().unwrap();
        let told = step["result_error"].as_str().unwrap_or_default();
        if told.starts_with("rpc: ") || method == "GetIPv6" {
            assert_eq!(error, told);
        } else if OWN.contains(&method) && told.is_empty() {
            assert_eq!((error.as_str(), Some(body)), ("", expected(step)), "{call}");
        }
    }
    assert_eq!(serving.await.unwrap().unwrap(), Shutdown::Closed, "every session ends with Close");
}
