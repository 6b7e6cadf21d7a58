//! Addresses go round, and each comes back to its last holder.
//!
//! `cargo run -p ipam --example round_robin`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use ipam::{RangeSpec, Ranges, Record, Request};

fn main() {
    let ranges = Ranges::parse(&[RangeSpec::subnet("192.0.2.0/29")]).expect("a valid subnet");
    println!("{ranges}: {} addresses", ranges.total());
    let mut record = Record::default();
    for holder in ["shop/web", "shop/api", "shop/db", "shop/web"] {
        let request = Request::of(holder);
        match record.claim(&ranges, request, |_| false) {
            Ok(claim) => println!("{holder} has {}", claim.address()),
            Err(refusal) => println!("{holder} waits: {refusal}"),
        }
    }
    let web: Vec<_> = record.of("shop/web").collect();
    for address in web {
        record.release(address, "shop/web", |_| false);
        println!("shop/web gave {address} back, {} are held", record.count());
    }
}
