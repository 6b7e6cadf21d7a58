//! Client and server in one process.

use std::sync::Arc;

use go_rpc::{
    CallError, Client, Limits, Server, Service, StreamError, Struct, ToGob, Type, Typed, Value, gob_struct,
};
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

#[derive(Debug, Default, PartialEq)]
struct Args {
    a: i64,
    b: i64,
}
gob_struct!(Args as "Args" { a => "A", b => "B" });

fn arith() -> Service {
    Service::new()
        .method("Divide", async |args: Args| args.a.checked_div(args.b).ok_or("divide by zero"))
        .method("Silent", async |()| Err::<(), _>(""))
        .method("Panic", async |args: Args| -> Result<i64, String> { panic!("a was {}", args.a) })
        .typed_method("Unfit", async |_| {
            Ok::<_, String>(Typed { of: Type::slice(Type::INT), value: Value::Bool(true) })
        })
}

type Serving = JoinHandle<Result<(), go_rpc::ServeError>>;

async fn connected(services: impl IntoIterator<Item = (&'static str, Service)>) -> (Client, Serving) {
    let server = Server::new(Limits::default(), services);
    let (here, there) = duplex(1 << 12);
    let serving = tokio::spawn(async move { server.serve(there).await });
    (Client::connect(here, Limits::default()).await.unwrap(), serving)
}

#[rstest]
#[case("Arith.Divide", Args { a: 1, b: 0 }, "divide by zero")]
#[case("Arith.Root", (), "rpc: can't find method Arith.Root")]
#[case("Other.Divide", (), "rpc: can't find service Other.Divide")]
#[case("Deep.Arith.Divide", (), "rpc: can't find service Deep.Arith.Divide")]
#[case("Divide", (), "rpc: service/method request ill-formed: Divide")]
#[case("", (), "rpc: service/method request ill-formed: ")]
#[case("Arith.Divide", "text".to_owned(), "gob: received string, want struct Args")]
#[case("Arith.Silent", (), "unspecified error")]
#[case("Arith.Panic", Args { a: 7, b: 0 }, "rpc: Arith.Panic panicked: a was 7")]
#[case("Arith.Unfit", (), "gob: a bool is no value of type []int")]
#[tokio::test]
async fn a_refused_call_says_why_and_the_connection_goes_on(
    #[case] method: &str,
    #[case] argument: impl ToGob,
    #[case] expected: &str,
) {
    let (client, serving) = connected([("Arith", arith())]).await;
    let error = client.call::<i64>(method, &argument).await.unwrap_err();
    assert!(matches!(&error, CallError::Server(text) if text == expected), "{error}");
    assert_eq!(client.call::<i64>("Arith.Divide", &Args { a: 6, b: 2 }).await.unwrap(), 3);
    drop(client);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_service_can_have_two_names() {
    let (client, _serving) = connected([("Arith", arith()), ("arith", arith())]).await;
    for method in ["Arith.Divide", "arith.Divide"] {
        assert_eq!(client.call::<i64>(method, &Args { a: 6, b: 2 }).await.unwrap(), 3);
    }
}

#[tokio::test]
async fn a_reply_of_another_type_fails_that_call_only() {
    let (client, _serving) = connected([("Arith", arith())]).await;
    let error = client.call::<String>("Arith.Divide", &Args { a: 6, b: 2 }).await.unwrap_err();
    assert_eq!(error.to_string(), "gob: received int, want string");
    assert_eq!(client.call::<i64>("Arith.Divide", &Args { a: 6, b: 2 }).await.unwrap(), 3);
}

#[tokio::test]
async fn an_argument_that_does_not_fit_its_type_is_not_sent() {
    let (client, _serving) = connected([("Arith", arith())]).await;
    let argument = Typed { of: Args::gob_type(), value: Struct::new().with("C", Value::Int(1)).into() };
    let error = client.call_typed("Arith.Divide", argument).await.unwrap_err();
    assert_eq!(error.to_string(), "gob: struct Args has no field C");
    assert_eq!(client.call::<i64>("Arith.Divide", &Args { a: 6, b: 2 }).await.unwrap(), 3);
}

/// `Wait` answers when `Open` has been called.
fn gate() -> Service {
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    Service::new()
        .method("Wait", move |()| {
            let gate = gate.clone();
            async move { gate.acquire().await.map(|permit| permit.forget()) }
        })
        .method("Open", move |permits: i64| {
            opened.add_permits(permits.try_into().unwrap());
            async { Ok::<_, String>(()) }
        })
}

#[tokio::test]
async fn calls_run_at_the_same_time_and_are_answered_in_any_order() {
    let (client, serving) = connected([("Gate", gate())]).await;
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<()>("Gate.Wait", &()).await })
        })
        .collect();
    client.call::<()>("Gate.Open", &100_i64).await.unwrap();
    for wait in waiting {
        wait.await.unwrap().unwrap();
    }
    drop(client);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_caller_that_stops_waiting_cancels_nothing() {
    let (client, _serving) = connected([("Gate", gate())]).await;
    {
        let wait = client.call::<()>("Gate.Wait", &());
        let mut wait = std::pin::pin!(wait);
        assert!(futures::poll!(wait.as_mut()).is_pending());
        client.call::<()>("Gate.Open", &0_i64).await.unwrap();
    }
    // the abandoned call takes the first permit, and its reply goes nowhere
    client.call::<()>("Gate.Open", &2_i64).await.unwrap();
    client.call::<()>("Gate.Wait", &()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_no_call() {
    let (begun, mut begins) = mpsc::channel(1);
    let (done, mut dones) = mpsc::channel(1);
    let go = Arc::new(Notify::new());
    let wake = go.clone();
    let service = Service::new().method("Work", move |()| {
        let (begun, done, go) = (begun.clone(), done.clone(), go.clone());
        async move {
            begun.send(()).await.unwrap();
            go.notified().await;
            done.send(()).await.unwrap();
            Ok::<_, String>(())
        }
    });
    let (client, serving) = connected([("Slow", service)]).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call::<()>("Slow.Work", &()).await }
    });
    begins.recv().await.unwrap();
    client.close();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "connection is shut down: closed by this side");
    assert!(!serving.is_finished());
    wake.notify_one();
    dones.recv().await.unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_follows_a_reply_happens_after_it_is_sent() {
    let (after, mut called) = mpsc::unbounded_channel();
    let then = move || after.send(()).unwrap();
    let service = Service::new().method_then("Close", async |()| Ok::<_, String>(()), then);
    let server = Server::new(Limits::default(), [("Plugin", service)]);
    let (here, there) = duplex(1 << 12);
    tokio::spawn(async move {
        tokio::select! {
            _ = server.serve(there) => {}
            _ = called.recv() => {} // as a process that ends: the connection falls
        }
    });
    let client = Client::connect(here, Limits::default()).await.unwrap();
    client.call::<()>("Plugin.Close", &()).await.unwrap();
    let error = client.call::<()>("Plugin.Close", &()).await.unwrap_err();
    assert!(matches!(error, CallError::ShutDown(_)));
}

#[tokio::test]
async fn what_follows_a_reply_happens_for_a_client_that_is_gone_too() {
    let (after, mut called) = mpsc::unbounded_channel();
    let service =
        Service::new().method_then("Close", async |()| Ok::<_, String>(()), move || after.send(()).unwrap());
    let server = Server::new(Limits::default(), [("Plugin", service)]);
    let (mut here, there) = duplex(1 << 12);
    // request for Plugin.Close with an empty struct, written by our own client into a buffer
    let (client_end, mut wire) = duplex(1 << 12);
    let client = Client::new(client_end, Limits::default());
    let call = tokio::spawn(async move { client.call::<()>("Plugin.Close", &()).await });
    let mut request = vec![0; 1];
    wire.read_exact(&mut request).await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    wire.read_to_end(&mut request).await.unwrap();
    here.write_all(&request).await.unwrap();
    drop(here);
    server.serve_gobs(there).await.unwrap();
    called.recv().await.unwrap();
}

/// The other end of a client whose server is played by hand.
async fn by_hand() -> (JoinHandle<Result<i64, CallError>>, Client, DuplexStream) {
    let (here, mut there) = duplex(1 << 12);
    let client = Client::new(here, Limits::default());
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call::<i64>("Arith.Divide", &Args { a: 6, b: 2 }).await }
    });
    assert_ne!(there.read(&mut [0; 1 << 12]).await.unwrap(), 0);
    (call, client, there)
}

#[rstest]
#[case::at_once(&[], "unexpected EOF")]
#[case::in_the_middle(&[0x39, 0x7f, 3], "unexpected EOF")]
#[case::header_no_value(&[3, 4, 1, 2], "value refused: gob: corrupted data: non-zero delta for singleton")]
#[case::header_no_header(&[3, 4, 0, 2], "header refused: gob: received int, want struct Response")]
#[case::endless(&[0xf8, 0xff, 0, 0, 0, 0, 0, 0, 0], "message refused: gob: a value of more than 4194304 bytes")]
#[tokio::test]
async fn a_server_that_breaks_off_ends_all_calls_with_the_reason(
    #[case] bytes: &[u8],
    #[case] expected: &str,
) {
    let (call, client, mut there) = by_hand().await;
    there.write_all(bytes).await.unwrap();
    drop(there);
    let expected = format!("connection is shut down: {expected}");
    assert_eq!(call.await.unwrap().unwrap_err().to_string(), expected);
    let later = client.call::<i64>("Arith.Divide", &Args::default()).await;
    assert_eq!(later.unwrap_err().to_string(), expected);
}

async fn served(bytes: &[u8]) -> Result<(), StreamError> {
    let (mut here, there) = duplex(1 << 12);
    here.write_all(bytes).await.unwrap();
    drop(here);
    Server::new(Limits::default(), [("Arith", arith())]).serve_gobs(there).await
}

#[tokio::test]
async fn a_connection_ends_at_a_header_that_is_none() {
    assert!(matches!(served(&[]).await, Ok(())));
    assert!(matches!(served(&[3, 4, 0, 2]).await, Err(StreamError::Header(_))));
    assert!(matches!(served(&[3, 4, 1, 2]).await, Err(StreamError::Value(_))));
    assert!(matches!(served(&[3, 4]).await, Err(StreamError::Cut)));
    assert!(matches!(served(&[0xf0]).await, Err(StreamError::Length(_))));
}

#[tokio::test]
async fn an_argument_that_is_no_value_is_answered_and_the_connection_goes_on() {
    let (client_end, mut wire) = duplex(1 << 12);
    let client = Client::new(client_end, Limits::default());
    let (mut here, there) = duplex(1 << 12);
    let server = Server::new(Limits::default(), [("Arith", arith())]);
    let serving = tokio::spawn(async move { server.serve_gobs(there).await });
    let call = tokio::spawn(async move {
        let first = client.call::<i64>("Arith.Divide", &5_i64).await;
        (first, client.call::<i64>("Arith.Divide", &Args { a: 6, b: 2 }).await)
    });
    let mut bytes = vec![0; 1 << 12];
    let length = wire.read(&mut bytes).await.unwrap();
    let request = &mut bytes[..length];
    assert!(request.ends_with(&[3, 4, 0, 10]));
    request[length - 2] = 1; // a singleton that is none
    here.write_all(request).await.unwrap();
    let passing = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut here, &mut wire).await });
    let (first, second) = call.await.unwrap();
    assert_eq!(first.unwrap_err().to_string(), "gob: corrupted data: non-zero delta for singleton");
    assert_eq!(second.unwrap(), 3);
    passing.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
}
