//! Finding and reading the file. Content is judged here once; what leaves this module can be connected with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kube::{
    Config,
    config::{AuthInfo, Cluster, Kubeconfig},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    bearer::{self, Fault},
    error::{Error, one_line},
    fingerprint::Fingerprint,
    outside::{self, Outside},
    proxy::{self, Environment},
};

/// Where a cloud-config is looked for without a flag: the place of the old generators, and RKE2's.
const DEFAULT_PATHS: [&str; 2] =
    ["/etc/kubernetes/cloud-config", "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config"];

/// Names of the file where a directory was given.
const FILE_NAMES: [&str; 3] = ["cloud-config", "cloud-provider-config", "kubeconfig"];

/// The kubeconfig file that `given` means: the file itself, or the one inside a directory. Without `given`, and where
/// `given` is one of the default places and not there, the default places are tried: generators and charts disagree
/// about them.
///
/// # Errors
/// [`Error::Missing`] with every path tried, or [`Error::EmptyDirectory`].
pub fn find(given: Option<&Path>) -> Result<PathBuf, Error> {
    find_among(given, &DEFAULT_PATHS.map(PathBuf::from))
}

fn find_among(given: Option<&Path>, defaults: &[PathBuf]) -> Result<PathBuf, Error> {
    let mut tried: Vec<PathBuf> = given.into_iter().map(Path::to_owned).collect();
    if given.is_none_or(|path| defaults.iter().any(|default| default == path)) {
        tried.extend(defaults.iter().filter(|default| Some(default.as_path()) != given).cloned());
    }
    for path in &tried {
        if path.is_dir() {
            return inside(path);
        }
        if path.exists() {
            return Ok(path.clone());
        }
    }
    Err(Error::Missing { tried })
}

/// The kubeconfig in a directory: by its usual names, else the only file there (a mounted Secret keeps its files
/// beside hidden folders).
fn inside(directory: &Path) -> Result<PathBuf, Error> {
    if let Some(found) = FILE_NAMES.iter().map(|name| directory.join(name)).find(|path| path.is_file()) {
        return Ok(found);
    }
    let read = |source| Error::Read { file: directory.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_file() && !hidden {
            files.push(path);
        }
    }
    match <[PathBuf; 1]>::try_from(files) {
        Ok([only]) => Ok(only),
        Err(_) => Err(Error::EmptyDirectory { path: directory.to_owned() }),
    }
}

/// A kubeconfig that can be connected with: context, cluster and credentials were found and read.
#[derive(Clone, Debug)]
pub struct CloudConfig {
    /// Where it came from, for messages.
    pub file: String,
    /// Name of the context in use: the file's `current-context`.
    pub context: String,
    /// The context's namespace; `default` where it names none.
    pub namespace: String,
    pub(crate) config: Config,
    /// Other files that it names.
    pub(crate) references: Vec<PathBuf>,
    /// The files as they were when it was read.
    pub(crate) seen: Fingerprint,
    /// The text of the source; empty where there was none.
    pub(crate) source: SecretString,
    /// The token of the source, where this is a copy with a newer one.
    pub(crate) source_token: Option<SecretString>,
}

impl CloudConfig {
    /// Reads a `file` that may be anybody's. It may name certificates and keys in other files, relative to the working
    /// directory, as for the Go program, which parsed the content without knowing the file's place. Programs are not run,
    /// and no other file is sent away.
    ///
    /// # Errors
    /// One line that names the file, the context and what is wrong.
    pub fn read(file: &Path) -> Result<Self, Error> {
        Self::of_file(file, Outside::Certificates)
    }

    /// Reads the `file` that this program was started with, which may name a `tokenFile` too.
    ///
    /// # Errors
    /// As [`CloudConfig::read`].
    pub(crate) fn read_own(file: &Path) -> Result<Self, Error> {
        Self::of_file(file, Outside::Files)
    }

    fn of_file(file: &Path, allowed: Outside) -> Result<Self, Error> {
        // before it is read: what changes meanwhile counts as changed
        let seen = Fingerprint::of([file]);
        let content =
            fs::read_to_string(file).map_err(|source| Error::Read { file: file.to_owned(), source })?;
        let (name, environment) = (file.display().to_string(), Environment::of_process());
        let mut config = Self::of_text(&content, &name, &environment, allowed)?;
        config.seen = seen.and(Fingerprint::of(config.references.iter().map(|it| &**it)));
        Ok(config)
    }

    /// Judges the content of a kubeconfig of anybody; `file` is only its name in messages. It names no other file.
    ///
    /// # Errors
    /// As [`CloudConfig::read`].
    pub fn parse(content: &str, file: &str, environment: &Environment) -> Result<Self, Error> {
        Self::of_text(content, file, environment, Outside::Nothing)
    }

    /// The kubeconfig of the person who runs this: it may run programs and read files, as with kubectl.
    ///
    /// # Errors
    /// As [`CloudConfig::read`].
    pub fn of_person(kubeconfig: Kubeconfig, file: &str, environment: &Environment) -> Result<Self, Error> {
        Self::from_kubeconfig(kubeconfig, file, None, environment, Outside::Everything)
    }

    fn of_text(
        content: &str,
        file: &str,
        environment: &Environment,
        allowed: Outside,
    ) -> Result<Self, Error> {
        let kubeconfig = Kubeconfig::from_yaml(content)
            .map_err(|error| Error::Parse { file: file.to_owned(), reason: one_line(&error) })?;
        let config = Self::from_kubeconfig(kubeconfig, file, None, environment, allowed)?;
        Ok(Self { source: SecretString::from(content), ..config })
    }

    /// `server` replaces the address that the file gives.
    pub(crate) fn from_kubeconfig(
        kubeconfig: Kubeconfig,
        file: &str,
        server: Option<&str>,
        environment: &Environment,
        allowed: Outside,
    ) -> Result<Self, Error> {
        let file = file.to_owned();
        let Some(context) = kubeconfig.current_context.filter(|name| !name.is_empty()) else {
            return Err(Error::NoCurrentContext { file });
        };
        let chosen = kubeconfig.contexts.into_iter().find(|named| named.name == context);
        let Some(chosen) = chosen.and_then(|named| named.context) else {
            return Err(Error::NoContext { file, context });
        };
        let cluster = kubeconfig.clusters.into_iter().find(|named| named.name == chosen.cluster);
        let Some(cluster) = cluster.and_then(|named| named.cluster) else {
            return Err(Error::NoCluster { file, context, cluster: chosen.cluster });
        };
        let mut references: Vec<Option<String>> = vec![cluster.certificate_authority.clone()];
        // client-go takes a missing user for an anonymous one
        let user = kubeconfig.auth_infos.into_iter().find(|named| Some(&named.name) == chosen.user.as_ref());
        let user = user.and_then(|named| named.auth_info).unwrap_or_default();
        // before anything follows a reference
        let refused = outside::refused(&cluster, &user, allowed);
        if !refused.is_empty() {
            return Err(Error::Outside { file, context, what: refused.join(", ") });
        }
        references.extend([
            user.client_certificate.clone(),
            user.client_key.clone(),
            user.token_file.clone(),
        ]);
        let references = references.into_iter().flatten().filter(|path| !path.is_empty());
        let references = references.map(PathBuf::from).collect();
        let namespace =
            chosen.namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned());
        let mut config = settings(&cluster, user, server, environment).map_err(|(what, reason)| {
            Error::Field { file: file.clone(), context: context.clone(), what, reason }
        })?;
        config.default_namespace.clone_from(&namespace);
        let (seen, source) = (Fingerprint::default(), SecretString::default());
        Ok(Self { file, context, namespace, config, references, seen, source, source_token: None })
    }

    /// The text that somebody gave, from which a copy with a newer token is made. It holds the credential.
    pub fn source(&self) -> &str {
        self.source.expose_secret()
    }

    /// The token, where it is in the file itself.
    pub fn token(&self) -> Option<&str> {
        self.config.auth_info.token.as_ref().map(ExposeSecret::expose_secret)
    }

    /// The same with another token, and with nothing else that differs.
    pub fn with_token(&self, token: &str) -> Self {
        let mut other = self.clone();
        other.config.auth_info.token = Some(SecretString::from(token));
        other
    }

    /// Whether it was read from other files than `former`, or from the same ones after somebody wrote them.
    pub fn is_other_than(&self, former: &Self) -> bool {
        self.seen != former.seen || self.source() != former.source()
    }

    /// Whether requests may reach another server than with `former`: by its address, or by what leads to it and proves it. A
    /// credential is no part of that.
    pub fn is_elsewhere_than(&self, former: &Self) -> bool {
        let (ours, theirs) = (&self.config, &former.config);
        self.server() != former.server()
            || ours.root_cert != theirs.root_cert
            || ours.tls_server_name != theirs.tls_server_name
            || ours.proxy_url != theirs.proxy_url
    }

    /// Whether it is a copy of its source, with a newer token.
    pub fn is_copy(&self) -> bool {
        self.source_token.is_some()
    }

    /// Whether `insecure-skip-tls-verify` is set, so that whoever answers counts as the server.
    pub fn trusts_everybody(&self) -> bool {
        self.config.accept_invalid_certs
    }

    /// The server's address, for messages: without a password.
    pub fn server(&self) -> String {
        without_user(&self.config.cluster_url.to_string())
    }
}

fn settings(
    cluster: &Cluster,
    user: AuthInfo,
    server: Option<&str>,
    environment: &Environment,
) -> Result<Config, Fault> {
    let server = server.or(cluster.server.as_deref()).unwrap_or_default();
    let mut config = Config::new(address(server).map_err(|reason| ("server", reason))?);
    config.root_cert = authority(cluster)?;
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    config.tls_server_name = cluster.tls_server_name.clone();
    config.proxy_url = proxy::decide(&config.cluster_url, cluster.proxy_url.as_deref(), environment)
        .map_err(|reason| ("proxy", reason))?;
    config.auth_info = bearer::with_clean_token(user)?;
    Ok(config)
}

/// A server's address; without a scheme it is https, as client-go has it.
fn address(server: &str) -> Result<http::Uri, String> {
    if server.is_empty() {
        return Err("the cluster has no address".to_owned());
    }
    let full = if server.contains("://") { server.to_owned() } else { format!("https://{server}") };
    let named = without_user(server);
    let uri: http::Uri = full.parse().map_err(|error| format!("{named:?} is no address: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https" | "http"), Some(_)) => Ok(uri),
        _ => Err(format!("{named:?} is no http or https address")),
    }
}

/// The address without the name and password of a user, which no message may show. In one that cannot be parsed they end
/// wherever the last `@` is.
pub(crate) fn without_user(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let Some((_, rest)) = rest.rsplit_once('@') else { return address.to_owned() };
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// The certificates that the server's one must lead to. Content wins over a file.
fn authority(cluster: &Cluster) -> Result<Option<Vec<Vec<u8>>>, Fault> {
    let (what, pem) = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) if !data.is_empty() => {
            let what = "certificate-authority-data";
            (what, decode(data).map_err(|reason| (what, reason))?)
        }
        (_, Some(file)) if !file.is_empty() => {
            let what = "certificate-authority";
            (what, fs::read(file).map_err(|error| (what, format!("{file}: {error}")))?)
        }
        _ => return Ok(None),
    };
    let certificates: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|error| (what, format!("is no PEM: {error}")))?;
    if certificates.is_empty() {
        return Err((what, "holds no certificate".to_owned()));
    }
    Ok(Some(certificates))
}

fn decode(data: &str) -> Result<Vec<u8>, String> {
    use base64::Engine as _;
    let compact: String = data.split_whitespace().collect();
    base64::engine::general_purpose::STANDARD
        .decode(compact)
        .map_err(|error| format!("is no base64: {error}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: default
clusters: [{name: default, cluster: {server: 'https://198.51.100.10:6443'}}]
users: [{name: default, user: {token: secret}}]
contexts: [{name: default, context: {cluster: default, user: default, namespace: tenant-a}}]
";

    fn parse(content: &str) -> Result<CloudConfig, String> {
        let parsed = CloudConfig::parse(content, "/etc/kubernetes/cloud-config", &Environment::default());
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn the_namespace_of_the_context_is_the_one_to_work_in() {
        let config = parse(GOOD).unwrap();
        assert_eq!((config.context.as_str(), config.namespace.as_str()), ("default", "tenant-a"));
        assert_eq!(config.config.default_namespace, "tenant-a");
        assert_eq!(config.server(), "https://198.51.100.10:6443/");
    }

    #[rstest]
    #[case::absent(", namespace: tenant-a", "")]
    #[case::empty("namespace: tenant-a", "namespace: ''")]
    fn a_context_without_namespace_means_default(#[case] old: &str, #[case] new: &str) {
        assert_eq!(parse(&GOOD.replace(old, new)).unwrap().namespace, "default");
    }

    #[rstest]
    #[case::a_newer_token("token: secret", "token: newer", false)]
    #[case::another_address("198.51.100.10", "198.51.100.11", true)]
    #[case::another_name(":6443'", ":6443', tls-server-name: b", true)]
    #[case::another_authority(
        ":6443'",
        ":6443', certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
        true
    )]
    #[case::by_a_proxy(":6443'", ":6443', proxy-url: 'http://192.0.2.1:3128'", true)]
    fn another_server_is_known_by_what_leads_to_it(
        #[case] old: &str,
        #[case] new: &str,
        #[case] expected: bool,
    ) {
        let changed = parse(&GOOD.replace(old, new)).unwrap();
        assert_eq!(changed.is_elsewhere_than(&parse(GOOD).unwrap()), expected);
    }

    #[test]
    fn json_is_as_good_as_yaml() {
        let json = r#"{"current-context":"a","clusters":[{"name":"c","cluster":{"server":"https://h:6443"}}],
            "contexts":[{"name":"a","context":{"cluster":"c"}}]}"#;
        assert_eq!(parse(json).unwrap().namespace, "default");
    }

    #[test]
    fn a_server_without_scheme_is_reached_by_https() {
        let config = parse(&GOOD.replace("https://198.51.100.10:6443", "host.example:6443")).unwrap();
        assert_eq!(config.server(), "https://host.example:6443/");
    }

    #[rstest]
    #[case::good("https://u:geheim@h:6443", "https://h:6443/")]
    #[case::without_scheme("u:geheim@h:6443", "https://h:6443/")]
    #[case::another_scheme("ftp://u:geheim@h", "\"ftp://h\" is no http or https address")]
    #[case::no_address("https://u:geheim@h h", "\"https://h h\" is no address")]
    fn a_password_in_the_servers_address_is_in_no_message(#[case] server: &str, #[case] part: &str) {
        let told = match parse(&GOOD.replace("https://198.51.100.10:6443", server)) {
            Ok(config) => config.server(),
            Err(error) => error,
        };
        assert!(told.contains(part) && !told.contains("geheim"), "{told}");
    }

    #[rstest]
    #[case::no_current("current-context: default", "", "names no current-context")]
    #[case::wrong_current("current-context: default", "current-context: other", "has no context \"other\"")]
    #[case::no_cluster(
        "cluster: default,",
        "cluster: none,",
        "context \"default\": no cluster \"none\" in it"
    )]
    #[case::no_server("server: 'https://198.51.100.10:6443'", "", "server: the cluster has no address")]
    #[case::bad_server(
        "https://",
        "ftp://",
        "server: \"ftp://198.51.100.10:6443\" is no http or https address"
    )]
    #[case::bad_authority(
        "server:",
        "certificate-authority-data: '!', server:",
        "certificate-authority-data: is no base64"
    )]
    #[case::empty_authority(
        "server:",
        "certificate-authority-data: aGVsbG8=, server:",
        "certificate-authority-data: holds no certificate"
    // docs/contract/cloud-controller-manager.md#S6
    )]
    #[case::no_yaml("current-context", "]", "cannot be parsed")]
    fn a_fault_is_one_line_that_names_file_and_place(
        #[case] old: &str,
        #[case] new: &str,
        #[case] part: &str,
    ) {
        let error = parse(&GOOD.replacen(old, new, 1)).unwrap_err();
        assert!(error.contains("/etc/kubernetes/cloud-config"), "{error}");
        assert!(error.contains(part), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    // YAML's block form, in which people and templates write it, ends with a line break
    #[rstest]
    #[case::line_break("token: \"secret\\n\"")]
    #[case::blanks("token: ' secret '")]
    fn white_space_around_a_token_is_no_part_of_it(#[case] token: &str) {
        assert_eq!(parse(&GOOD.replace("token: secret", token)).unwrap().token(), Some("secret"));
    }

    #[test]
    fn a_token_over_two_lines_is_refused_by_its_field_and_without_a_letter_of_it() {
        let error = parse(&GOOD.replace("token: secret", "token: \"secret\\nletters\"")).unwrap_err();
        assert!(error.contains("cloud-config, context \"default\": token: has a line break"), "{error}");
        assert!(!error.contains("secret") && !error.contains("letters"), "{error}");
    }

    const EXEC: &str = "exec: {command: rm, apiVersion: client.authentication.k8s.io/v1}";
    const PROVIDER: &str = "auth-provider: {name: gcp, config: {cmd-path: /bin/rm}}";

    // who may write a file or a Secret with a cloud-config has no program run by who reads it
    #[rstest]
    #[case::program("token: secret", EXEC, "exec is not taken", true)]
    #[case::provider("token: secret", PROVIDER, "auth-provider is not taken", true)]
    #[case::token("token: secret", "tokenFile: /etc/shadow", "tokenFile is not taken", true)]
    #[case::certificate(
        "token: secret",
        "client-certificate: /a, client-key: /b",
        "client-certificate, client-key is not taken",
        false
    )]
    #[case::authority(
        "server: ",
        "certificate-authority: /etc/shadow, server: ",
        "certificate-authority is not taken",
        false
    )]
    fn a_cloud_config_runs_no_program_and_sends_no_file_away_and_a_text_names_no_file(
        #[case] old: &str,
        #[case] new: &str,
        #[case] part: &str,
        #[case] in_files_too: bool,
    ) {
        let text = GOOD.replace(old, new);
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, &text).unwrap();
        let read = CloudConfig::read(file.path()).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(read.is_err_and(|error| error.contains("is not taken")), in_files_too);
        let given = CloudConfig::read_own(file.path()).map(|_| ()).map_err(|error| error.to_string());
        let runs = new == EXEC || new == PROVIDER;
        assert_eq!(given.is_err_and(|error| error.contains("is not taken")), runs, "by a program of ours");
        let own =
            CloudConfig::of_person(Kubeconfig::from_yaml(&text).unwrap(), "own", &Environment::default());
        let own = own.map(|_| ()).map_err(|error| error.to_string());
        assert!(
            !own.is_err_and(|error| error.contains("is not taken")),
            "a person's own is as kubectl has it"
        );
    }

    #[test]
    fn the_file_is_found_by_itself_in_a_directory_and_in_both_default_places() {
        let folder = tempfile::tempdir().unwrap();
        let (legacy, rke2) = (folder.path().join("legacy"), folder.path().join("rke2"));
        let defaults = [legacy.clone(), rke2.clone()];
        let missing = find_among(None, &defaults).unwrap_err().to_string();
        assert!(missing.contains("legacy") && missing.contains("rke2"), "{missing}");

        fs::write(&rke2, GOOD).unwrap();
        assert_eq!(find_among(None, &defaults).unwrap(), rke2);
        assert_eq!(find_among(Some(&legacy), &defaults).unwrap(), rke2, "one default stands for the other");
        let own = folder.path().join("own");
        assert!(find_among(Some(&own), &defaults).is_err(), "a path of one's own is meant as it is");

        // docs/contract/user-docs.md#17f: the path is called a directory in places
        fs::create_dir_all(legacy.join("..data")).unwrap();
        assert!(matches!(find_among(Some(&legacy), &defaults), Err(Error::EmptyDirectory { .. })));
        fs::write(legacy.join("value"), GOOD).unwrap();
        assert_eq!(find_among(Some(&legacy), &defaults).unwrap(), legacy.join("value"));
        fs::write(legacy.join("cloud-config"), GOOD).unwrap();
        assert_eq!(find_among(Some(&legacy), &defaults).unwrap(), legacy.join("cloud-config"));
    }
}
