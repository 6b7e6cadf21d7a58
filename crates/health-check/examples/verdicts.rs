// Probes two backends of one load balancer: a port where something listens, and one where nothing does.
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use health_check::{Check, DIALS_AT_ONCE, DialError, News, Prober, Target, Thresholds, Verdict, network};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let alive = TcpListener::bind("127.0.0.1:0")?;
    let dead = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let target = |address: SocketAddr| Target {
        address,
        check: Check {
            thresholds: Thresholds { success: 1, failure: 2 },
            period: Duration::from_millis(50),
            timeout: Duration::from_millis(500),
            http: None,
        },
        recorded: None,
    };

    // a load balancer is (tenant, name), and the tenant is its group
    let prober = Prober::<(&str, &str), &str>::new(DIALS_AT_ONCE, 1, |(tenant, _)| tenant);
    let web = ("shop", "web");
    prober.set_targets(web, BTreeMap::from([("vm-1", target(alive.local_addr()?)), ("vm-2", target(dead))]));

    let (changes, mut changed) = tokio::sync::mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    tokio::spawn(prober.clone().run(
        network(),
        move |news| match news {
            News::Changed { object } => changes.send(object).expect("main listens"),
            News::Answered { .. } | News::Flaps => {}
        },
        stop.clone(),
    ));
    for _ in 0..2 {
        assert_eq!(changed.recv().await, Some(web));
    }
    let verdicts = prober.verdicts(&web);
    assert_eq!(verdicts["vm-1"], Verdict { ready: true, error: None });
    assert_eq!(verdicts["vm-2"], Verdict { ready: false, error: Some(DialError::Refused) });
    stop.cancel();
    Ok(())
}
