//! The command line: `cloud-config generate ACCOUNT NAMESPACE`, `cloud-config inspect [FILE]`,
//! `cloud-config rotate [FILE]`, `cloud-config serve`.
//!
//! Exit codes: 0 it is done; 1 Harvester or a file cannot be used; 2 wrong arguments; 3 a right is missing (inspect).

use std::{
    ffi::OsString,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use cloud_config::{CloudConfig, Local, Options};
use credential_rotation::in_use;
use jiff::SignedDuration;
use kube::config::Kubeconfig;
use program::{
    complain, failed,
    flags::{Flag, Reader, Table},
};

use crate::{
    error::shown,
    generate::{Administrator, OWN_NAME, Run, is_said_on_stdout},
    inspect::{self, Report},
    request::{self, Format, Part, Request},
    rotate::{self, Kept, Renewed},
    serve,
};

/// Name in usage texts and in the User-Agent.
const PROGRAM: &str = "harvester-cloud-provider";
/// What is printed, and made, changes only together with this number, which the scripts in `deploy/` have too.
pub const REVISION: u32 = 3;
const WRONG_ARGUMENTS: u8 = 2;
const RIGHT_MISSING: u8 = 3;
/// Longest kubeconfig that is read from standard input.
const KUBECONFIG_MAX: u64 = 1 << 20;

/// Life of a token that is renewed, in hours and as a duration.
const DEFAULT_LIFE: SignedDuration = SignedDuration::from_hours(720);
/// Kubernetes gives no shorter one.
const SHORTEST_LIFE: SignedDuration = SignedDuration::from_mins(10);

fn life(text: &str) -> Result<SignedDuration, String> {
    let life = program::duration::parse(text)?;
    match SignedDuration::try_from(life) {
        Ok(life) if life >= SHORTEST_LIFE => Ok(life),
        _ => Err(format!("{text}: a token lasts 10m at least")),
    }
}

/// The flags of `cloud-config generate`.
pub const GENERATE: Table = Table {
    program: "harvester-cloud-provider cloud-config generate ACCOUNT NAMESPACE",
    about: "Makes a service account in Harvester for a guest cluster whose VMs are in the namespace, and prints its \
            kubeconfig. The account is best named as the cluster.",
    flags: &[
        Flag::value("for", "PART", "cloud-provider or csi: whom the account is for")
            .default("cloud-provider"),
        Flag::value(
            "kubeconfig",
            "FILE",
            "Harvester, as an administrator; - reads it from standard input; else the variable KUBECONFIG, else \
             ~/.kube/config",
        ),
        Flag::value(
            "format",
            "FORMAT",
            "cloud-init (kubeconfig, then user data), rke-addon (block for RKE1), kubeconfig (nothing else)",
        )
        .default("cloud-init"),
        Flag::value("server", "URL", "the address of Harvester that the guest cluster shall use"),
        Flag::switch(
            "least",
            "CSI driver: in no namespace of others the rights that no other namespace needs",
        ),
        Flag::switch("keep", "keep the kubeconfig in ./tmp/kube too"),
        Flag::switch("no-check", "do not try address, certificate and token before they are printed"),
        Flag::switch(
            "rotate",
            "a token that ends and that its account may renew, in place of one that does not end",
        ),
        Flag::value("life", "DURATION", "how long such a token lasts; Harvester may give less")
            .default("720h"),
        Flag::value("program", "NAME", "name in messages").hidden(),
        Flag::switch("revision", "what the scripts ask, to know whether this does the very same").hidden(),
    ],
};

/// The flags of `cloud-config inspect`.
pub const INSPECT: Table = Table {
    program: "harvester-cloud-provider cloud-config inspect [FILE]",
    about: "Says what a cloud-config is good for: its endpoint, namespace, certificate authority and end, and each right \
            with what is off without it. Where the parts renew the token, it looks at theirs. Writes nothing. Without FILE it \
            looks where the parts look.",
    flags: &[
        Flag::value("for", "PART", "cloud-provider or csi: whose rights are asked for")
            .default("cloud-provider"),
        Flag::value(
            "kubeconfig",
            "FILE",
            "the guest cluster, whose parts may have a newer token; else KUBECONFIG, else the pod's service account",
        ),
        Flag::value("output", "FORMAT", "text or json").default("text"),
    ],
};

/// The flags of `cloud-config rotate`.
pub const ROTATE: Table = Table {
    program: "harvester-cloud-provider cloud-config rotate [FILE]",
    about: "Renews the token of a cloud-config that was made by generate --rotate, in its file, once two thirds of its life \
            are over. With --retire ACCOUNT NAMESPACE deletes the account's token that does not end, if nothing has used it for \
            two days.",
    flags: &[
        Flag::switch("now", "renew the token also while it is not due"),
        Flag::value(
            "secret",
            "NAMESPACE/NAME",
            "the cloud-config is in this Secret of the guest cluster, in no file",
        ),
        Flag::value(
            "key",
            "KEY",
            "where it is in that Secret; other keys with the same cloud-config are renewed with it",
        )
        .default("cloud-config"),
        Flag::switch("retire", "delete the token that does not end"),
        Flag::value(
            "kubeconfig",
            "FILE",
            "with --secret: the guest cluster, else KUBECONFIG, else the pod's service account; with --retire: Harvester, \
             as for generate",
        ),
    ],
};

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut words = program::words(args);
    let command = if words.is_empty() { String::new() } else { words.remove(0) };
    match command.as_str() {
        "generate" => generate(words),
        "inspect" => inspect(words),
        "rotate" => rotate(words),
        // it begins with a program's name, which nobody reads
        "serve" => serve::cli::main([command].into_iter().chain(words).map(OsString::from)),
        _ => {
            refuse(&["say what to do: cloud-config generate, inspect, rotate or serve".to_owned()], "COMMAND")
        }
    }
}

/// The checked values of `generate`.
#[derive(Debug, PartialEq)]
struct Generate {
    request: Request,
    kubeconfig: Option<String>,
    program: String,
}

fn generate(args: Vec<String>) -> ExitCode {
    let (words, flags) = GENERATE.split(args);
    if let Some(text) = program::asked_for(&GENERATE, env!("CARGO_PKG_VERSION"), &flags) {
        return program::show(&text);
    }
    let reader = GENERATE.read(&flags, |name| std::env::var(name).ok());
    if reader.is_on("revision") {
        return program::show(&format!("cloud-config generate {REVISION}\n"));
    }
    let generate = match Generate::from(&words, reader) {
        Ok(generate) => generate,
        Err(faults) => return refuse(&faults, "generate"),
    };
    let name = generate.program.clone();
    match program::run_tool(|_| Box::pin(async move { generate.run().await })) {
        Ok(Ok(text)) => program::show(&text),
        Ok(Err(why)) => failed(&format!("{name}: {why}")),
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

impl Generate {
    fn from(words: &[String], mut reader: Reader<'_>) -> Result<Self, Vec<String>> {
        let named = match words {
            [account, namespace, ..] => request::account(account)
                .and_then(|account| request::namespace(namespace).map(|namespace| (account, namespace))),
            _ => Err("name account and namespace: cloud-config generate ACCOUNT NAMESPACE".to_owned()),
        };
        let (account, namespace) = named.map_err(|fault| reader.fault(fault)).unwrap_or_default();
        let part = reader.read("for", Part::CloudProvider, request::part);
        let least = reader.is_on("least");
        if least && part == Part::CloudProvider {
            reader.fault(format!(
                "--least is for the CSI driver; the cloud provider has rights in {namespace} alone"
            ));
        }
        let life = reader.read("life", DEFAULT_LIFE, life);
        let rotate = reader.is_on("rotate");
        if !rotate && reader.given().last("life").is_some() {
            reader.fault("--life is for a token that ends: give --rotate too");
        }
        let request = Request {
            part,
            account,
            namespace,
            format: reader.read("format", Format::CloudInit, request::format),
            server: reader.read("server", None, |text| request::server(text).map(Some)),
            least,
            keep: reader.is_on("keep"),
            check: !reader.is_on("no-check"),
            rotate: rotate.then_some(life),
        };
        let generate = Self {
            request,
            kubeconfig: reader.text("kubeconfig"),
            program: reader.text("program").unwrap_or_else(|| OWN_NAME.to_owned()),
        };
        reader.finish(generate)
    }

    async fn run(self) -> Result<String, String> {
        let kubeconfig = administrators(self.kubeconfig.as_deref())?;
        let options = Options::named(&agent());
        let administrator = Administrator::of(&kubeconfig, &options).map_err(|error| error.to_string())?;
        let mut progress: Box<dyn io::Write + Send + Sync> = if is_said_on_stdout(self.request.format) {
            Box::new(io::stdout())
        } else {
            Box::new(io::stderr())
        };
        let run = Run {
            request: &self.request,
            administrator,
            options: &options,
            program: &self.program,
            progress: &mut *progress,
            notes: &mut io::stderr(),
            user: None,
        };
        run.generate().await.map_err(|error| error.to_string())
    }
}

fn inspect(args: Vec<String>) -> ExitCode {
    let (words, flags) = INSPECT.split(args);
    if let Some(text) = program::asked_for(&INSPECT, env!("CARGO_PKG_VERSION"), &flags) {
        return program::show(&text);
    }
    let mut reader = INSPECT.read(&flags, |name| std::env::var(name).ok());
    let part = reader.read("for", Part::CloudProvider, request::part);
    let json = reader.read("output", false, |text| match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err(format!("{text:?}: use text or json")),
    });
    if words.len() > 1 || words.iter().any(String::is_empty) {
        reader.fault("name one file: cloud-config inspect [FILE]".to_owned());
    }
    let file = words.first().map(PathBuf::from);
    let guest = Local { kubeconfig: reader.text("kubeconfig").map(PathBuf::from), master: None };
    if let Err(faults) = reader.finish(()) {
        return refuse(&faults, "inspect");
    }
    let outcome = program::run_tool(|process| {
        Box::pin(async move { look(file.as_deref(), &guest, part, process.clock.now()).await })
    });
    match outcome {
        Ok(Ok(report)) => show_report(&report, json),
        Ok(Err(why)) => failed(&why),
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

async fn look(
    file: Option<&Path>,
    guest: &Local,
    part: Part,
    now: jiff::Timestamp,
) -> Result<Report, String> {
    let options = Options::named(&agent());
    let config = CloudConfig::read(&find(file, "inspect")?).map_err(|error| error.to_string())?;
    let client = match cloud_config::local(guest, &options) {
        // what was given is to be used
        Err(error) if guest.kubeconfig.is_some() => return Err(error.to_string()),
        client => client.map_err(|error| error.to_string()),
    };
    let connect = credential_rotation::connect(options.clone());
    let used = in_use(config, client.as_ref().map_err(Clone::clone), &*connect).await;
    Ok(inspect::inspect(&used, part, &options, now).await)
}

fn show_report(report: &Report, json: bool) -> ExitCode {
    let text = if json {
        match serde_json::to_string_pretty(report) {
            Ok(text) => text + "\n",
            Err(error) => return failed(&error.to_string()),
        }
    } else {
        inspect::render(report)
    };
    let shown = program::show(&text);
    match report {
        _ if report.is_good() => shown,
        Report { answer: Err(_), .. } => ExitCode::FAILURE,
        _ => ExitCode::from(RIGHT_MISSING),
    }
}

fn rotate(args: Vec<String>) -> ExitCode {
    let (words, flags) = ROTATE.split(args);
    if let Some(text) = program::asked_for(&ROTATE, env!("CARGO_PKG_VERSION"), &flags) {
        return program::show(&text);
    }
    let mut reader = ROTATE.read(&flags, |name| std::env::var(name).ok());
    let (now, retire, kubeconfig) = (reader.is_on("now"), reader.is_on("retire"), reader.text("kubeconfig"));
    let key = reader.text("key").unwrap_or_default();
    let secret = reader.optional("secret", |text| match text.split('/').collect::<Vec<_>>()[..] {
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
            Ok(Kept::Secret(namespace.to_owned(), name.to_owned(), key))
        }
        _ => Err(format!("{text:?} is no Secret: write it as kube-system/harvester-cloud-config")),
    });
    let named = match (&words[..], retire) {
        ([account, namespace], true) => request::account(account)
            .and_then(|account| request::namespace(namespace).map(|namespace| (account, namespace))),
        ([_], false) if secret.is_some() => Err("--secret names the cloud-config: leave FILE out".to_owned()),
        ([file], false) if file.is_empty() => Err("name one file: cloud-config rotate [FILE]".to_owned()),
        ([] | [_], false) => Ok(<(String, String)>::default()),
        (_, true) => {
            Err("name account and namespace: cloud-config rotate --retire ACCOUNT NAMESPACE".to_owned())
        }
        (_, false) => Err("name one file: cloud-config rotate [FILE]".to_owned()),
    };
    let (account, namespace) = named.map_err(|fault| reader.fault(fault)).unwrap_or_default();
    if retire && (secret.is_some() || now) {
        reader
            .fault("--retire is about a token in Harvester: it takes neither --secret nor --now".to_owned());
    }
    if secret.is_none() && reader.given().last("key").is_some() {
        reader.fault("--key is of the Secret that --secret names: give both".to_owned());
    }
    if let Err(faults) = reader.finish(()) {
        return refuse(&faults, "rotate");
    }
    let file = words.first().map(PathBuf::from);
    let outcome = program::run_tool(|process| {
        let time = process.clock.now();
        Box::pin(async move {
            match secret {
                _ if retire => retire_token(kubeconfig.as_deref(), &account, &namespace, time).await,
                Some(secret) => {
                    let local = Local { kubeconfig: kubeconfig.map(PathBuf::from), master: None };
                    let guest = cloud_config::local(&local, &Options::named(&agent()));
                    let guest = guest.map_err(|error| error.to_string())?;
                    let renewed =
                        rotate::renew_secret(&guest, &secret, now, &Options::named(&agent()), time).await;
                    Ok(told(&secret, &renewed.map_err(|error| error.to_string())?))
                }
                None => renew_token(file.as_deref(), now, time).await,
            }
        })
    });
    match outcome {
        Ok(Ok(text)) => program::show(&text),
        Ok(Err(why)) => failed(&why),
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

async fn renew_token(file: Option<&Path>, at_once: bool, now: jiff::Timestamp) -> Result<String, String> {
    let file = find(file, "rotate")?;
    let renewed = rotate::renew_file(&file, at_once, &Options::named(&agent()), now).await;
    Ok(told(&Kept::File(file), &renewed.map_err(|error| error.to_string())?))
}

fn told(place: &Kept, renewed: &Renewed) -> String {
    match renewed {
        Renewed::Until { end, also } if also.is_empty() => {
            format!("{place} has a new token, which ends at {end}\n")
        }
        Renewed::Until { end, also } => {
            let also = also.iter().map(|key| shown(key)).collect::<Vec<_>>().join(", ");
            format!(
                "{place} has a new token, which ends at {end}; so have its keys with the same cloud-config: {also}\n"
            )
        }
        Renewed::DueAt(due) => format!("{place} stays as it is: its token is renewed from {due} on\n"),
    }
}

async fn retire_token(
    kubeconfig: Option<&str>,
    account: &str,
    namespace: &str,
    now: jiff::Timestamp,
) -> Result<String, String> {
    let administrator = Administrator::of(&administrators(kubeconfig)?, &Options::named(&agent()));
    let client = administrator.map_err(|error| error.to_string())?.client;
    let name = rotate::retire(&client, namespace, account, now).await.map_err(|error| error.to_string())?;
    Ok(format!("Secret {name} of namespace {namespace} is deleted: its token opens nothing any more\n"))
}

/// The file, or where it was looked for; here it is named by a word, and by no flag.
fn find(file: Option<&Path>, command: &str) -> Result<PathBuf, String> {
    cloud_config::find(file).map_err(|error| match error {
        cloud_config::Error::Missing { tried } => {
            let tried = tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            format!("no cloud-config found, tried {tried}: name its file, cloud-config {command} FILE")
        }
        error => error.to_string(),
    })
}

fn agent() -> String {
    format!("{PROGRAM}/{} cloud-config", env!("CARGO_PKG_VERSION"))
}

/// The administrator's kubeconfig.
fn administrators(given: Option<&str>) -> Result<Kubeconfig, String> {
    let hint = |why: &dyn std::fmt::Display| {
        format!(
            "{why}: set KUBECONFIG to a kubeconfig of the Harvester cluster, such as /etc/rancher/rke2/rke2.yaml of a \
             management node"
        )
    };
    match given {
        Some("-") => {
            let mut text = String::new();
            let read = io::stdin().take(KUBECONFIG_MAX).read_to_string(&mut text);
            read.map_err(|error| format!("read standard input: {error}"))?;
            Kubeconfig::from_yaml(&text).map_err(|error| hint(&error))
        }
        Some(file) => {
            let unread = |source| hint(&cloud_config::Error::Read { file: PathBuf::from(file), source });
            fs::metadata(file).map_err(unread)?;
            Kubeconfig::read_from(file).map_err(|error| hint(&error))
        }
        None => match std::env::var_os("KUBECONFIG").filter(|files| !files.is_empty()) {
            Some(files) => match cloud_config::merged(&files) {
                Ok(Some(read)) => Ok(read),
                Ok(None) => Err(hint(&"KUBECONFIG names no file")),
                Err(error) => Err(hint(&error)),
            },
            // the one in the home folder
            None => Kubeconfig::read().map_err(|error| hint(&error)),
        },
    }
}

fn refuse(faults: &[String], command: &str) -> ExitCode {
    faults.iter().for_each(|fault| complain(fault));
    complain(&format!("see cloud-config {command} --help"));
    ExitCode::from(WRONG_ARGUMENTS)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_exit_code_tells_a_missing_file_from_wrong_arguments() {
        let code =
            |args: &[&str]| format!("{:?}", main(["cloud-config"].iter().chain(args).map(OsString::from)));
        assert_eq!(code(&["inspect", "/nowhere/cloud-config"]), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(&["inspect", "a", "b"]), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(&["inspect", "--help"]), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(&[]), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(&["inspect", ""]), format!("{:?}", ExitCode::from(2)));
        let file_and_secret = ["rotate", "--secret", "kube-system/a", "/nowhere", "--kubeconfig", "/nowhere"];
        assert_eq!(
            code(&file_and_secret),
            format!("{:?}", ExitCode::from(2)),
            "the file would be passed over"
        );
        let key = ["rotate", "--key", "a", "/nowhere"];
        assert_eq!(code(&key), format!("{:?}", ExitCode::from(2)), "the key would be passed over");
        let both =
            ["rotate", "--retire", "--secret", "kube-system/a", "demo", "vms", "--kubeconfig", "/nowhere"];
        assert_eq!(code(&both), format!("{:?}", ExitCode::from(2)), "one of them would be left out silently");
    }

    fn read(args: &[&str]) -> Result<Generate, Vec<String>> {
        let (words, flags) = GENERATE.split(args.iter().map(|arg| (*arg).to_owned()));
        Generate::from(&words, GENERATE.read(&flags, |_| None))
    }

    #[test]
    fn flags_may_stand_before_and_after_the_names() {
        let read = read(&["--for", "csi", "demo", "--kubeconfig", "-", "vms", "--least"]).unwrap();
        let Request { part, account, namespace, least, check, .. } = read.request;
        assert_eq!((part, account.as_str(), namespace.as_str()), (Part::CsiDriver, "demo", "vms"));
        assert_eq!((least, check, read.kubeconfig.as_deref()), (true, true, Some("-")));
    }

    #[rstest]
    #[case::nothing(&[], "ACCOUNT NAMESPACE")]
    #[case::one(&["demo"], "ACCOUNT NAMESPACE")]
    #[case::bad_account(&["Demo", "vms"], "no name of a service account")]
    #[case::bad_namespace(&["demo", "v.ms"], "no name of a namespace")]
    #[case::bad_format(&["demo", "vms", "--format=xml"], "rke-addon")]
    #[case::bad_server(&["demo", "vms", "--server=192.0.2.1"], "https://192.0.2.1:6443")]
    #[case::short_life(&["demo", "vms", "--rotate", "--life=9m"], "10m at least")]
    #[case::life_of_a_token_that_does_not_end(&["demo", "vms", "--life=1h"], "give --rotate too")]
    #[case::least(&["demo", "vms", "--least"], "--least is for the CSI driver")]
    fn a_wrong_argument_is_told_with_the_right_form(#[case] args: &[&str], #[case] part: &str) {
        let faults = read(args).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }

    #[test]
    fn the_scripts_have_the_revision_of_this() {
        let script = include_str!("../../../deploy/generate_addon.sh");
        assert!(script.contains(&format!("\nrevision={REVISION}\n")));
    }
}
