//! The first screen of the README and what the sandbox says to type, typed as they stand: by somebody with a kubectl, and with
//! nothing else of ours on the PATH.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use outside_tools::Tool;

use super::{READY, Sandbox, TURN, binary, read, run};

/// A command that shows something until it is ended, and says where first.
fn shows_a_page(line: &str) -> bool {
    line.contains(" dashboard ")
}

/// Runs it until it has said something.
fn says_something(line: &str, folder: &Path) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line}")]).current_dir(folder).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.contains("127.0.0.1"), "{line}: {first:?}");
}

/// The lines of the README that are typed while the sandbox runs, up to the section on rancher-machine.
fn of_the_readme() -> Vec<String> {
    let readme = read("README.md");
    let (first, _) = readme.split_once("\n## Let rancher-machine").expect("it has the section");
    let programs = ["cargo run ", "export ", "harvester-cloud-provider ", "kubectl ", "curl "];
    let lines = first.lines().filter_map(|line| line.strip_prefix("    "));
    let typed = lines.filter(|line| programs.iter().any(|program| line.starts_with(program)));
    let typed = typed.filter(|line| !line.contains("-- sandbox"));
    // cargo would build: it is built
    typed
        .map(|line| line.replace("cargo run --release -- ", "target/release/harvester-cloud-provider "))
        .collect()
}

/// The page that the README shows below its first command.
fn page_of_the_readme() -> Vec<String> {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("-- status ").expect("it shows the status");
    let (page, _) = rest.split_once("\nand a page that moves").expect("the page ends");
    page.lines().skip(1).filter_map(|line| line.strip_prefix("    ")).map(same_everywhere).collect()
}

/// A line without widths of columns, ports, and names that are made up: of a process, and of a LoadBalancer.
fn same_everywhere(line: &str) -> String {
    let is_hex = |text: &str, length| text.len() == length && text.chars().all(|c| c.is_ascii_hexdigit());
    let word = |word: &str| match (word.rsplit_once('_'), word.rsplit_once('-')) {
        (Some((_, last)), _) if is_hex(last, 16) => "PROCESS".to_owned(),
        (_, Some((first, last))) if is_hex(last, 8) => format!("{first}-ID"),
        _ if word.starts_with("https://127.0.0.1:") => "https://127.0.0.1:PORT/,".to_owned(),
        _ => word.to_owned(),
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_the_readme_and_the_sandbox_say_is_typed_as_it_stands() {
    let _turn = TURN.lock().unwrap_or_else(|broken| broken.into_inner());
    let Some(kubectl) = Tool::Kubectl.find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let release = folder.path().join("target/release");
    fs::create_dir_all(&release).unwrap();
    symlink(binary(), release.join("harvester-cloud-provider")).unwrap();
    symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"), folder.path().join("examples")).unwrap();
    let sandbox = Sandbox::start(folder.path(), "sim");
    let hints =
        sandbox.said.iter().skip_while(|line| *line != "Try:").filter_map(|line| line.strip_prefix("  "));
    let hints: Vec<_> = hints.filter(|line| !line.starts_with("docs/")).map(str::to_owned).collect();
    assert!(hints.len() > 5, "before {READY:?} it said {:#?}", sandbox.said);
    let address = hints[0].rsplit_once('/').unwrap().1;
    let mut readme = of_the_readme();
    assert!(readme.len() > 8, "{readme:#?}");
    // where ports below 1024 may not be bound, the sandbox says so
    readme
        .iter_mut()
        .for_each(|line| *line = line.replace("http://127.19.1.2", &format!("http://{address}")));
    let outside = tempfile::tempdir().unwrap();
    symlink(kubectl, outside.path().join("kubectl")).unwrap();
    let mut script = format!("PATH=\"{}:$PATH\"\n", outside.path().display());
    for line in readme.iter().chain(&hints) {
        match shows_a_page(line) {
            true => says_something(line, folder.path()),
            false => script += &format!("echo '+ {line}'\n{line}\n"),
        }
    }
    let told = run(&script, folder.path());
    assert!(told.contains("default/web") && told.contains("virtualmachine"), "{told}");
    assert!(!told.contains("due, if its flags"), "of a Service that is served nothing is due: {told}");
    // without root the CSI driver runs nowhere, and its line is not asked
    let nodes = format!(
        "'{}' --kubeconfig target/sandbox/guest.kubeconfig get csinodes --output name",
        outside.path().join("kubectl").display()
    );
    let has_volumes = !run(&nodes, folder.path()).is_empty();
    let counted = |line: String| match line.strip_prefix("Checks ").and_then(|rest| rest.split_once(' ')) {
        Some((_, rest)) if !has_volumes => rest.to_owned(),
        _ => line,
    };
    // each command is printed before what it says
    let (_, status) = told.split_once(" status ").unwrap();
    let status = status.split("\n+ ").next().unwrap();
    let shown = status.lines().skip(1).map(same_everywhere).filter(|line| !line.is_empty());
    let page = page_of_the_readme().into_iter().filter(|line| !line.is_empty());
    let (shown, page): (Vec<_>, Vec<_>) = (shown.map(counted).collect(), page.map(counted).collect());
    assert_eq!(shown, page, "the README shows what `status` prints");
}
