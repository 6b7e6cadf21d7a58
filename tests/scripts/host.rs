//! A Harvester on loopback, and somebody at a shell beside it.

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command as Blocking, Stdio},
};

use k8s_openapi::serde_json::{Value, from_str, json};
use outside_tools::Tool;
use sim_apiserver::{ApiServer, User};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, process::Command};

/// How a script is run.
#[derive(Clone, Debug, Default)]
pub(crate) struct How {
    /// The shell and its first arguments; `sh` where there is none.
    pub(crate) shell: Vec<String>,
    /// As a file, not through a pipe.
    pub(crate) file: bool,
    /// With tools of another system, and no others but kubectl and jq.
    pub(crate) bsd: bool,
    /// With the binary.
    pub(crate) binary: bool,
    /// With what each program that is started gets as arguments in file `arguments`.
    pub(crate) watched: bool,
    /// The context of the kubeconfig, where it is not Harvester.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Whenever a kept kubeconfig is removed, somebody puts a link to `stolen` in its place.
    pub(crate) thief: bool,
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    /// Files below the working folder and the folder for temporary files.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) folder: TempDir,
}

pub(crate) struct Host {
    folder: TempDir,
    pub(crate) server: ApiServer,
    pub(crate) address: String,
    pub(crate) kubectl: PathBuf,
    jq: PathBuf,
}

/// The built binary. A wrapper of rustc that is a shell script loses Cargo's variable, for the dashes in its name.
pub(crate) fn binary() -> PathBuf {
    let told = option_env!("CARGO_BIN_EXE_harvester-cloud-provider").map(PathBuf::from);
    told.unwrap_or_else(|| {
        let test = env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("harvester-cloud-provider")
    })
}

/// A program in PATH.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A program out of a Debian package, where this machine does not have it.
pub(crate) fn of_debian(name: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/debian-program.sh");
    let told = Blocking::new("sh").arg(script).arg(name).output().unwrap();
    if !told.status.success() {
        left_out(&format!("{name}: {}", String::from_utf8_lossy(&told.stderr).trim()));
        return None;
    }
    Some(PathBuf::from(String::from_utf8(told.stdout).unwrap().trim()))
}

pub(crate) fn left_out(what: &str) {
    #[expect(clippy::explicit_write, reason = "the test runner keeps what `eprintln` prints to itself")]
    writeln!(std::io::stderr(), "left out: {what}").unwrap();
}

/// Each shell of this machine that people may pipe a script into.
pub(crate) fn shells() -> Vec<Vec<String>> {
    let mut shells: Vec<Vec<String>> = ["sh", "dash", "bash", "ksh", "mksh"]
        .into_iter()
        .filter(|name| in_path(name).is_some())
        .map(|name| vec![name.to_owned()])
        .collect();
    if in_path("bash").is_some() {
        // what macOS has as sh
        shells.push(vec!["bash".to_owned(), "--posix".to_owned()]);
    }
    if let Some(busybox) = of_debian("busybox") {
        shells.push(vec![busybox.display().to_string(), "ash".to_owned()]);
    }
    shells
}

/// Names in the simulated Harvester that tests use.
pub(crate) const NAMESPACES: [&str; 4] = ["vms", "blue", "green", "harvester-system"];

impl Host {
    /// None where the machine lacks kubectl or jq.
    pub(crate) async fn open() -> Option<Self> {
        let (kubectl, jq) = (Tool::Kubectl.find(), in_path("jq"));
        let (Some(kubectl), Some(jq)) = (kubectl, jq) else {
            assert!(env::var_os("CI").is_none(), "no kubectl or no jq here, and CI wants this test");
            left_out("the scripts need kubectl (`cargo xtask tools` builds it) and jq");
            return None;
        };
        let builder = NAMESPACES.iter().fold(ApiServer::builder(), |builder, name| builder.namespace(*name));
        let server = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(User::admin(), address);
        let kubeconfig =
            kubeconfig.replace("name: default", "name: local").replace("cluster: default", "cluster: local");
        let kubeconfig = kubeconfig.replace("current-context: default", "current-context: local");
        fs::write(folder.path().join("harvester"), kubeconfig).unwrap();
        let serving = server.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        let host = Self { folder, server, address: format!("https://{address}"), kubectl, jq };
        let roles = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac/ours.yaml");
        let text = fs::read_to_string(roles).unwrap();
        // the roles that are part of Harvester itself
        let own: Vec<_> =
            text.split("\n---\n").filter(|one| one.contains("  name: harvesterhci.io:")).collect();
        host.apply(&own.join("\n---\n")).await;
        Some(host)
    }

    /// The administrator's.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("harvester")
    }

    /// kubectl as the administrator; what it prints.
    pub(crate) async fn kubectl(&self, arguments: &str) -> (bool, String) {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", self.kubeconfig()).env("HOME", self.folder.path());
        let told = command.args(arguments.split(' ')).stdin(Stdio::null()).output().await.unwrap();
        (
            told.status.success(),
            String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr),
        )
    }

    pub(crate) async fn apply(&self, text: &str) {
        let file = self.folder.path().join("applied.yaml");
        fs::write(&file, text).unwrap();
        let (done, told) = self.kubectl(&format!("apply -f {}", file.display())).await;
        assert!(done, "{told}");
    }

    /// The object as JSON.
    pub(crate) async fn get(&self, what: &str) -> Value {
        let (found, told) = self.kubectl(&format!("get {what} -o json")).await;
        assert!(found, "{told}");
        from_str(&told).unwrap()
    }

    /// Whether the account may do this: verb, resource with its group, `-n` and a namespace.
    pub(crate) async fn may(&self, account: &str, what: &str) -> bool {
        let words: Vec<_> = what.split(' ').collect();
        let (verb, resource) = (words[0], words[1]);
        let (resource, name) = resource.split_once('/').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let namespace = words.get(3).unwrap_or(&"");
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": format!("system:serviceaccount:{account}"), "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "name": name, "namespace": namespace}},
        });
        let file = self.folder.path().join("question.json");
        fs::write(&file, question.to_string()).unwrap();
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let (done, told) = self.kubectl(&format!("create --raw {path} -f {}", file.display())).await;
        assert!(done, "{told}");
        told.contains("\"allowed\":true")
    }

    /// Runs a script of `deploy/`.
    pub(crate) async fn run(&self, how: &How, name: &str, arguments: &str) -> Told {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (work, temporary, programs) = (at("work"), at("temporary"), at("programs"));
        symlink(&self.kubectl, programs.join("kubectl")).unwrap();
        symlink(&self.jq, programs.join("jq")).unwrap();
        if how.binary {
            symlink(binary(), programs.join("harvester-cloud-provider")).unwrap();
        }
        if how.watched {
            watched_tools(&programs, &folder.path().join("arguments"));
        }
        let mut path = programs.display().to_string();
        if how.bsd {
            bsd_tools(&programs);
        } else {
            path = format!("{path}:/usr/bin:/bin");
        }
        let shell = if how.shell.is_empty() { vec!["sh".to_owned()] } else { how.shell.clone() };
        let mut command = Command::new(in_path(&shell[0]).unwrap_or_else(|| shell[0].clone().into()));
        command.args(&shell[1..]);
        let mut text = super::script(name);
        if how.thief {
            // a function, because a busybox may have its own `rm` and look for no other in PATH
            let stolen = folder.path().join("stolen");
            let link = format!("case $2 in *-conf) ln -s {} \"$2\";; esac", stolen.display());
            text = format!("rm() {{\n    command rm \"$@\"\n    {link}\n}}\n{text}");
        }
        if how.file {
            let file = folder.path().join(name);
            fs::write(&file, &text).unwrap();
            command.arg(file);
        } else {
            command.arg("-s");
        }
        let kubeconfig = how.kubeconfig.clone().unwrap_or_else(|| self.kubeconfig());
        // as a shell reads them
        let words = arguments.split(' ').filter(|word| !word.is_empty());
        let words = words.map(|word| if word == "''" { "" } else { word });
        command.args(words).current_dir(&work).env_clear();
        command.envs([("PATH", path.as_str()), ("LANG", "de_DE.UTF-8")]);
        command.env("KUBECONFIG", kubeconfig).env("TMPDIR", &temporary).env("HOME", self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        if !how.file {
            // one that refuses its arguments may not read to the end
            stdin.write_all(text.as_bytes()).await.ok();
        }
        drop(stdin);
        let told = child.wait_with_output().await.unwrap();
        let mut files = below(&work);
        files.extend(below(&temporary));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Told { code: told.status.code(), out: text(told.stdout), err: text(told.stderr), files, folder }
    }

    /// Runs `cloud-config` of the binary as the administrator.
    pub(crate) async fn cloud_config(&self, folder: &Path, arguments: &str) -> (Option<i32>, String, String) {
        let mut command = Command::new(binary());
        command.arg("cloud-config").args(arguments.split(' ')).current_dir(folder);
        command.env("KUBECONFIG", self.kubeconfig()).stdin(Stdio::null());
        let told = command.output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (told.status.code(), text(told.stdout), text(told.stderr))
    }

    /// A run that succeeds; what it prints.
    pub(crate) async fn works(&self, how: &How, name: &str, arguments: &str) -> Told {
        let told = self.run(how, name, arguments).await;
        assert_eq!(told.code, Some(0), "{how:?} {name} {arguments}: {}\n{}", told.out, told.err);
        told
    }
}

pub(crate) fn below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

fn program(file: &Path, text: &str) {
    fs::write(file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The programs that a script may start, which note how they are called.
fn watched_tools(folder: &Path, log: &Path) {
    for name in ["kubectl", "jq", "printf", "echo", "cat", "sed", "mkdir", "mktemp", "rm", "sleep"] {
        let file = folder.join(name);
        let real = fs::read_link(&file).ok().or_else(|| in_path(name)).unwrap();
        drop(fs::remove_file(&file));
        let note = format!("printf '%s\\n' \"{name} $*\" >>{}", log.display());
        program(&file, &format!("{note}\nexec {} \"$@\"", real.display()));
    }
}

/// Tools that know only what those of macOS and FreeBSD know too. Every other tool is missing.
fn bsd_tools(folder: &Path) {
    let refuse = "case $* in *--*) echo \"$0: illegal option: $*\" >&2; exit 64;; esac";
    for (name, more) in [
        ("cat", ""),
        ("rm", ""),
        ("mkdir", ""),
        ("sleep", ""),
        ("chmod", ""),
        ("sed", "case $1 in -i*|-r|-z|-s) exit 64;; esac"),
        // the template has to be whole
        ("mktemp", "case \"$1 $2\" in \"-d \"*XXXXXX) ;; *) exit 64;; esac"),
        // no -w, and -d is newer than many a system
        ("base64", "case $* in *-w*|*-d*) exit 64;; esac"),
    ] {
        let real = in_path(name).unwrap();
        let file = folder.join(name);
        program(&file, &format!("{refuse}\n{more}\nexec {} \"$@\"", real.display()));
    }
}
