//! The arithmetic service of Go's `net/rpc` documentation, served and called over TCP.
//!
//! A Go program can call it with `rpc.DialHTTP("tcp", address)` and `client.Call("Arith.Multiply", args, &reply)`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use go_rpc::{Client, Limits, Server, Service, gob_struct};
use tokio::net::{TcpListener, TcpStream};

/// Go: `type Args struct { A, B int }`.
struct Args {
    a: i64,
    b: i64,
}
gob_struct!(Args as "Args" { a => "A", b => "B" });

/// Go: `type Quotient struct { Quo, Rem int }`.
struct Quotient {
    quotient: i64,
    remainder: i64,
}
gob_struct!(Quotient as "Quotient" { quotient => "Quo", remainder => "Rem" });

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arith = Service::new()
        .method("Multiply", async |args: Args| args.a.checked_mul(args.b).ok_or("overflow"))
        .method("Divide", async |args: Args| {
            let quotient = args.a.checked_div(args.b).ok_or("divide by zero")?;
            Ok::<_, &str>(Quotient { quotient, remainder: args.a % args.b })
        });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { Server::new(Limits::default(), [("Arith", arith)]).listen(listener).await });

    let client = Client::connect(TcpStream::connect(address).await?, Limits::default()).await?;
    let product: i64 = client.call("Arith.Multiply", &Args { a: 17, b: 8 }).await?;
    println!("17 × 8 = {product}");
    let Quotient { quotient, remainder } = client.call("Arith.Divide", &Args { a: 17, b: 8 }).await?;
    println!("17 / 8 = {quotient}, remainder {remainder}");
    if let Err(error) = client.call::<Quotient>("Arith.Divide", &Args { a: 17, b: 0 }).await {
        println!("17 / 0: {error}");
    }
    Ok(())
}
