//! The plugin of kubectl, by the names that kubectl and krew call it; and the rights that people's tools ask about.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::Value;

/// The built binary. A wrapper of rustc that is a shell script loses Cargo's variable, for the dashes in its name.
fn binary() -> PathBuf {
    let told = option_env!("CARGO_BIN_EXE_harvester-cloud-provider").map(PathBuf::from);
    told.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("harvester-cloud-provider")
    })
}

/// Runs the program by this name.
fn called(name: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join(name);
    symlink(binary(), &link).unwrap();
    let command = Command::new(&link).args(args).env_remove("KUBECONFIG").current_dir(folder.path()).output();
    command.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn by_the_name_of_the_plugin_the_first_word_chooses_the_command() {
    let told = called("kubectl-harvester", &["doctor", "--list"]);
    assert!(told.status.success() && text(&told.stdout).contains("guest-api"), "{told:?}");
    let told = called("kubectl-harvester", &["orphans", "--help"]);
    assert!(told.status.success() && text(&told.stdout).contains("--delete-volumes"), "{told:?}");
    let told = called("kubectl-harvester", &["--help"]);
    assert!(text(&told.stdout).contains("explain service"), "{told:?}");
    for word in ["load-balancer", "sandbox", "--kubeconfig=x", "nope"] {
        let told = called("kubectl-harvester", &[word]);
        assert_eq!(told.status.code(), Some(2), "{word}");
        assert!(text(&told.stderr).contains("is no command"), "{told:?}");
    }
}

#[test]
fn output_that_does_not_fit_on_the_disk_is_a_failure_and_a_reader_that_has_enough_is_none() {
    let list = || {
        let mut command = Command::new(binary());
        command.args(["doctor", "--list"]);
        command
    };
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let told = list().stdout(full).output().unwrap();
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(text(&told.stderr).contains("write to standard output: No space left on device"), "{told:?}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let told = list().stdout(writer).output().unwrap();
    assert!(told.status.success() && told.stderr.is_empty(), "{told:?}");
}

#[test]
fn the_list_of_doctors_checks_is_json_where_that_is_asked_for() {
    let told = called("harvester-cloud-provider", &["doctor", "--list", "--output", "json"]);
    let all: Vec<Value> = serde_json::from_slice(&told.stdout).unwrap();
    assert!(all.iter().any(|check| check["id"] == "guest-api" && check["about"].is_string()), "{told:?}");
}

/// Each names what is there to be given.
#[test]
fn an_error_of_the_command_line_names_no_flag_that_the_command_lacks_and_a_file_as_it_was_given() {
    let serve = ["cloud-config", "serve", "--address=127.0.0.1:0", "--tls-cert-file=/nowhere"];
    let serve = [&serve[..], &["--tls-private-key-file=/nowhere"]].concat();
    let table: [(&[&str], &str, &str); 5] = [
        (&["cloud-config", "inspect", "/nowhere"], "cloud-config inspect FILE", "--cloud-config"),
        (&["cloud-config", "rotate", "/nowhere"], "cloud-config rotate FILE", "--cloud-config"),
        (
            &["cloud-config", "generate", "demo", "vms", "--kubeconfig=/nowhere"],
            "read kubeconfig /nowhere: No such file",
            "\"/nowhere\"",
        ),
        (&serve, "use certificate /nowhere", "serving https"),
        (
            &[&serve[..], &["--api-server-ca=/dev/null"]].concat(),
            "there is no certificate in it",
            "serving https",
        ),
    ];
    for (words, expected, unwanted) in table {
        let told = called("harvester-cloud-provider", words);
        assert_eq!(told.status.code(), Some(1), "{words:?}: {told:?}");
        let all = text(&told.stdout) + &text(&told.stderr);
        assert!(all.contains(expected) && !all.contains(unwanted), "{words:?}: {all}");
    }
}

/// Who reads the JSON gets it in every case.
#[test]
fn a_kubeconfig_that_cannot_be_opened_is_a_red_line_of_doctor() {
    let words = ["doctor", "--output", "json", "--kubeconfig", "/nowhere", "--cloud-config", "/nowhere"];
    let told = called("harvester-cloud-provider", &words);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    let findings: Value = serde_json::from_slice(&told.stdout).unwrap();
    let red: Vec<_> = findings.as_array().unwrap().iter().filter(|it| it["verdict"] == "red").collect();
    assert!(
        matches!(red[..], [guest, config] if guest["id"] == "guest-api" && config["id"] == "cloud-config"),
        "{red:?}"
    );
    assert!(red[0]["sentence"].as_str().unwrap().contains("/nowhere"), "{red:?}");
}

/// By SIGTERM, as by Ctrl-C: a shell starts what runs in its background so that it passes SIGINT over.
#[test]
fn a_tool_that_waits_for_the_plugin_of_a_kubeconfig_is_ended_at_once() {
    let by_signal = 128 + 15;
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tools.md")).unwrap();
    assert!(page.contains(&format!("a tool exits with 130 or {by_signal}")), "docs/tools.md");
    let table: [(&[&str], i32); 5] = [
        (&["doctor"], by_signal),
        (&["status", "--watch"], by_signal),
        (&["explain", "service", "shop/web"], by_signal),
        (&["orphans"], by_signal),
        (&["dashboard", "--address=127.0.0.1:0"], 0),
    ];
    for (words, code) in table {
        let folder = tempfile::tempdir().unwrap();
        let [kubeconfig, plugin] = ["kubeconfig", "plugin"].map(|name| folder.path().join(name));
        let script = format!("echo $$ > {}; exec sleep 60", plugin.display());
        let text = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": "https://guest.example"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "users": [{"name": "a", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1",
                "command": "sh", "args": ["-c", script], "interactiveMode": "Never"}}}]});
        fs::write(&kubeconfig, text.to_string()).unwrap();
        let mut command = Command::new(binary());
        command.args(words).arg(format!("--kubeconfig={}", kubeconfig.display())).current_dir(folder.path());
        let mut tool = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let asked = (0..3_000).find_map(|_| {
            sleep(Duration::from_millis(20));
            fs::read_to_string(&plugin).ok().filter(|id| id.ends_with('\n'))
        });
        let plugin = asked.unwrap_or_else(|| panic!("{words:?} asked no plugin within a minute"));
        let end = |id: &str| Command::new("kill").args(["-TERM", id.trim()]).status().unwrap();
        assert!(end(&tool.id().to_string()).success());
        // by a handler: Linux passes no other signal to process 1 of a container
        let ended = tool.wait().unwrap();
        assert_eq!(ended.code(), Some(code), "{words:?}: {ended}");
        assert!(end(&plugin).success());
    }
}

#[test]
fn kubectl_and_shells_get_the_same_completions() {
    let words = ["status", "--w"];
    let by_kubectl = called("kubectl_complete-harvester", &words);
    let by_shell = called("kubectl-harvester", &["__complete", "status", "--w"]);
    let by_name = called("harvester-cloud-provider", &["__complete", "status", "--w"]);
    assert!(text(&by_kubectl.stdout).starts_with("--watch\t"), "{by_kubectl:?}");
    assert!(text(&by_kubectl.stdout).ends_with("\n:4\n"), "{by_kubectl:?}");
    assert_eq!(by_kubectl.stdout, by_shell.stdout);
    assert_eq!(by_kubectl.stdout, by_name.stdout);
}

/// bash is on every machine that this is developed on; zsh and fish are asked where they are.
#[test]
fn bash_completes_commands_flags_and_files_by_the_script() {
    let folder = tempfile::tempdir().unwrap();
    symlink(binary(), folder.path().join("kubectl-harvester")).unwrap();
    fs::write(folder.path().join("guest.kubeconfig"), "").unwrap();
    let complete = |line: &str| {
        let script = format!(
            "source <(kubectl-harvester completion bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; \
             read -ra COMP_WORDS <<<\"$COMP_LINE\"; [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=(''); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _kubectl_harvester; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let told =
            Command::new("bash").args(["-c", &script]).env("PATH", path).current_dir(folder.path()).output();
        text(&told.unwrap().stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("kubectl-harvester do"), ["doctor"]);
    assert_eq!(complete("kubectl-harvester cloud-config ro"), ["rotate"]);
    assert_eq!(complete("kubectl-harvester orphans --delete-"), ["--delete-volumes"]);
    assert_eq!(complete("kubectl-harvester status --kubeconfig gu"), ["guest.kubeconfig"]);
}

#[test]
fn the_scripts_for_shells_are_what_those_shells_take() {
    for (shell, check) in [("bash", vec!["-n"]), ("zsh", vec!["-n"]), ("fish", vec!["--no-execute"])] {
        let told = called("kubectl-harvester", &["completion", shell]);
        assert!(told.status.success(), "{told:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &told.stdout).unwrap();
        // a shell that this machine lacks says nothing
        if let Ok(read) = Command::new(shell).args(check).arg(file.path()).output() {
            assert!(read.status.success(), "{shell}: {read:?}");
        }
    }
    assert_eq!(called("kubectl-harvester", &["completion", "csh"]).status.code(), Some(2));
}

#[test]
fn the_manifest_for_krew_has_the_sums_of_the_archives() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let archives = ["hcp-linux-amd64.tar.gz", "hcp-linux-arm64.tar.gz"].map(|name| folder.path().join(name));
    // the sums of "a" and "b", as everybody computes them
    let sums = [
        "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
    ];
    fs::write(&archives[0], "a").unwrap();
    fs::write(&archives[1], "b").unwrap();
    let run = |version: &str, archives: &[PathBuf]| {
        let script = root.join("deploy/krew/manifest.sh");
        let args = [version, "https://example.org/releases", "https://example.org"];
        Command::new("sh").arg(script).args(args).args(archives).output().unwrap()
    };
    let told = run("v0.1.0", &archives);
    assert!(told.status.success(), "{told:?}");
    let manifest: Value = serde_saphyr::from_str(&text(&told.stdout)).unwrap();
    assert_eq!(manifest["metadata"]["name"], "harvester");
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 2);
    for (platform, sum) in platforms.iter().zip(sums) {
        assert_eq!(
            (platform["sha256"].as_str(), platform["bin"].as_str()),
            (Some(sum), Some("kubectl-harvester"))
        );
    }
    assert_eq!(platforms[1]["uri"], "https://example.org/releases/hcp-linux-arm64.tar.gz");
    assert!(!run("latest", &archives).status.success());
    assert!(!run("v1.2.3", &[folder.path().join("gone-linux-amd64.tar.gz")]).status.success());
}

/// The rules of a ClusterRole in `deploy/rbac/ours.yaml`, as group, resource and verb; `*` stands for every verb.
fn granted(role: &str) -> Vec<(String, String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac/ours.yaml");
    let text = fs::read_to_string(file).unwrap();
    let roles = text.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let is_it = |it: &Value| it["kind"] == "ClusterRole" && it["metadata"]["name"] == role;
    let role = roles.into_iter().find(is_it).unwrap_or_else(|| panic!("no ClusterRole {role}"));
    let words =
        |rule: &Value, field: &str| -> Vec<String> { serde_json::from_value(rule[field].clone()).unwrap() };
    let mut granted = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                for verb in words(rule, "verbs") {
                    granted.push((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    granted
}

/// `doctor` and `cloud-config inspect` ask by these tables.
#[test]
fn the_rights_that_are_asked_about_are_those_that_the_roles_grant() {
    use cloud_controller_manager::rights;
    use csi_driver::host::rights::{GRANTS, Role};

    let has = |granted: &[(String, String, String)], group: &str, resource: &str, verb: &str| {
        granted.iter().any(|it| it.0 == group && it.1 == resource && ["*", verb].contains(&it.2.as_str()))
    };
    let of_provider = granted(rights::ROLE);
    for grant in &rights::GRANTS {
        assert!(has(&of_provider, grant.group, grant.resource, grant.verb), "{grant:?}");
    }
    for grant in GRANTS.iter().filter(|grant| grant.role != Role::Guest) {
        assert!(has(&granted(grant.role.name()), grant.group, grant.resource, grant.verb), "{grant:?}");
    }
    // nobody else needs these of the role
    for (group, resource, verb) in &of_provider {
        let is_asked = rights::GRANTS.iter().any(|grant| {
            (grant.group, grant.resource, grant.verb) == (group.as_str(), resource.as_str(), verb.as_str())
        });
        assert!(
            is_asked || !["loadbalancer.harvesterhci.io", "kubevirt.io"].contains(&group.as_str()),
            "{verb} {resource}"
        );
    }
}
