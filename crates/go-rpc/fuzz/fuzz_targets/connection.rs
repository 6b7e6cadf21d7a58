//! Any bytes as a connection to a server: it ends, without a panic.

#![no_main]

use go_rpc::{Limits, Server, Service};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

fuzz_target!(|bytes: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime needs nothing");
    runtime.block_on(async {
        let echo = Service::new().typed_method("Any", async |argument| Ok::<_, String>(argument));
        let server = Server::new(Limits::default(), [("Echo", echo)]);
        let (mut here, there) = duplex(4096);
        let serving = tokio::spawn(async move { server.serve(there).await });
        let (mut read, mut write) = tokio::io::split(&mut here);
        let mut answers = Vec::new();
        let ask = async {
            write.write_all(b"CONNECT /_goRPC_ HTTP/1.0\n\n").await.ok();
            write.write_all(bytes).await.ok();
            write.shutdown().await.ok();
        };
        let ((), read) = tokio::join!(ask, read.read_to_end(&mut answers));
        read.expect("memory does not fail");
        serving.await.expect("the server does not panic").ok();
    });
});
