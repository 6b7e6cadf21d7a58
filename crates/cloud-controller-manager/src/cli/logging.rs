//! Log lines on stderr, at the level of `-v`.

use tracing_subscriber::EnvFilter;

use super::arguments;

const OURS: [&str; 4] = ["cloud_config", "cloud_controller_manager", "cloud_provider", "controller_kit"];

/// What they have to say we say too, with the object that it is about.
const QUIET: &str = "kube_runtime=off,kube_client=off";

/// Starts logging; the flags are looked at before they are judged, because their faults are logged too. A second
/// call in one process changes nothing.
pub(super) fn start(args: &[String]) {
    let (level, json) = wanted(args);
    let ours: Vec<_> = OURS.iter().map(|name| format!("{name}={level}")).collect();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("warn,{QUIET},harvester_cloud_provider=info,{}", ours.join(",")))
    });
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let started = if json { lines.json().try_init() } else { lines.try_init() };
    if let Err(error) = started {
        tracing::debug!("logging was started before: {error}");
    }
}

fn wanted(args: &[String]) -> (&'static str, bool) {
    // faults elsewhere must not silence the verbosity
    let read = |name: &str| {
        let alone = |window: &[String]| arguments::read(window).0.last(name).map(str::to_owned);
        args.iter()
            .enumerate()
            .rev()
            .find_map(|(at, _)| alone(&args[at..=at]).or_else(|| args.get(at..at + 2).and_then(alone)))
    };
    let level = match read("v").and_then(|text| text.parse::<u32>().ok()).unwrap_or(0) {
        0..=2 => "info",
        3..=4 => "debug",
        _ => "trace",
    };
    (level, read("logging-format").as_deref() == Some("json"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&[], ("info", false))]
    #[case(&["-v=3"], ("debug", false))]
    #[case(&["--v", "5", "--nope"], ("trace", false))]
    #[case(&["--nope", "-v4", "--logging-format=json"], ("debug", true))]
    #[case(&["--v=x"], ("info", false))]
    fn verbosity_counts_also_beside_wrong_flags(#[case] args: &[&str], #[case] expected: (&str, bool)) {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        assert_eq!(wanted(&args), expected);
    }
}
