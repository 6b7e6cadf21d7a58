//! Every way to run a script gives the same.

use std::{fs, process::Command};

use super::host::{Host, How, in_path, of_debian, shells};

const ADDON: &str = "generate_addon.sh";

/// The output of a run without what differs from account to account.
fn normal(out: &str, account: &str) -> String {
    let mut normal = String::new();
    for line in out.replace(account, "ACCOUNT").lines() {
        let hidden = ["token: ", "content: ", "Service Account uid: ", "Setting current context"];
        let cut = hidden.iter().find_map(|word| line.find(word).map(|at| at + word.len()));
        normal += cut.map_or(line, |at| &line[..at]);
        normal += "\n";
    }
    normal
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shell_prints_the_same_piped_or_from_a_file_and_with_the_tools_of_macos() {
    let Some(host) = Host::open().await else { return };
    let mut expected: Option<String> = None;
    for (index, shell) in shells().into_iter().enumerate() {
        // all three once, and of the others what asks most
        let ways: &[_] =
            if index == 0 { &[(false, false), (true, false), (false, true)] } else { &[(false, true)] };
        for (file, bsd) in ways.iter().copied() {
            let how = How { shell: shell.clone(), file, bsd, ..How::default() };
            let account = format!("demo-{index}-{}{}", u8::from(file), u8::from(bsd));
            let told = host.works(&how, ADDON, &format!("{account} vms")).await;
            let out = normal(&told.out, &account);
            assert!(
                out.ends_with("path: /etc/kubernetes/cloud-config\n  permissions: '0644'\n"),
                "{how:?}: {out}"
            );
            assert_eq!(&out, expected.get_or_insert_with(|| out.clone()), "{how:?}");
            assert!(told.files.is_empty(), "{how:?}: {:?}", told.files);
        }
    }
}

/// In mksh printf is a program, and everybody sees the arguments of a program.
#[tokio::test(flavor = "multi_thread")]
async fn no_program_that_the_script_starts_has_a_secret_in_its_arguments_in_any_shell() {
    let Some(host) = Host::open().await else { return };
    let mut all = shells();
    if in_path("bash").is_some() {
        // bash without its own printf and echo
        let without = "enable -n printf echo; eval \"$(cat)\"";
        all.push(vec!["bash".to_owned(), "-c".to_owned(), without.to_owned()]);
    }
    let admin = fs::read_to_string(host.kubeconfig()).unwrap();
    let admin = admin.split_once("token: ").unwrap().1.lines().next().unwrap().trim_matches('"');
    for (index, shell) in all.into_iter().enumerate() {
        for (at, format) in ["cloud-init", "kubeconfig", "rke-addon"].into_iter().enumerate() {
            let how = How { shell: shell.clone(), watched: true, ..How::default() };
            let account = format!("demo-{index}-{at}");
            let told = host.works(&how, ADDON, &format!("{account} vms --keep --format {format}")).await;
            let token = told.out.rsplit_once("token: ").unwrap().1.lines().next().unwrap();
            let content =
                told.out.split_once("content: ").map_or("-", |(_, rest)| rest.lines().next().unwrap());
            let log = fs::read_to_string(told.folder.path().join("arguments")).unwrap();
            assert!(log.contains("jq "), "{how:?}: {log}");
            for secret in [token, content, admin] {
                assert!(secret == "-" || !log.contains(secret), "{how:?}: {log}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_prints_and_makes_what_the_script_does() {
    let Some(host) = Host::open().await else { return };
    let address = &host.address;
    let (script, binary) = (How::default(), How { binary: true, ..How::default() });
    for (index, (name, options)) in [
        (ADDON, String::new()),
        (ADDON, format!("--server {address} --format rke-addon --no-check")),
        ("generate_kubeconfig.sh", "--format=kubeconfig".to_owned()),
        ("generate_addon_csi.sh", format!("--server={address}")),
        ("generate_addon_csi.sh", format!("RKE2 --server={address} --least")),
    ]
    .into_iter()
    .enumerate()
    {
        let by_binary = format!("by-binary-{index}");
        let first = host.works(&binary, name, &format!("{by_binary} vms {options}")).await;
        let by_script = format!("by-script-{index}");
        let other = host.works(&script, name, &format!("{by_script} vms {options}")).await;
        // roles that all accounts share are made once
        let made = |out: &str| out.replace("least created", "least unchanged");
        assert_eq!(
            made(&normal(&first.out, &by_binary)),
            made(&normal(&other.out, &by_script)),
            "{name} {options}"
        );
        // whoever comes second finds everything as it has to be, to the letter
        let revision = host.server.revision();
        let second = host.works(&script, name, &format!("{by_binary} vms {options}")).await;
        let third = host.works(&binary, name, &format!("{by_binary} vms {options}")).await;
        assert_eq!((second.out, second.err), (third.out, third.err), "{name} {options}");
        assert_eq!(host.server.revision(), revision, "{name} {options}: a second run writes nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_that_is_another_program_is_not_used() {
    let Some(host) = Host::open().await else { return };
    // the Go program of this name knows no such word
    let how = How {
        shell: vec!["env".into(), "HARVESTER_CLOUD_PROVIDER=false".into(), "sh".into()],
        ..How::default()
    };
    let told = host.works(&how, ADDON, "demo vms").await;
    assert!(told.out.contains("########## cloud config ############"), "{}", told.out);
}

#[test]
fn the_three_scripts_are_one_program() {
    let text = super::script(ADDON);
    for name in ["generate_addon_csi", "generate_kubeconfig"] {
        let expected = text.replacen("\nscript=generate_addon\n", &format!("\nscript={name}\n"), 1);
        assert!(super::script(&format!("{name}.sh")) == expected, "deploy/{name}.sh is another program");
    }
}

#[test]
fn shellcheck_finds_nothing_in_the_scripts() {
    let Some(shellcheck) = in_path("shellcheck").or_else(|| of_debian("shellcheck")) else { return };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let scripts = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let scripts: Vec<_> = scripts.filter(|path| path.extension().is_some_and(|it| it == "sh")).collect();
    assert!(scripts.len() >= 3);
    let told = Command::new(shellcheck).args(scripts).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
}
