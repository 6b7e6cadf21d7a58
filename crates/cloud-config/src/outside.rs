//! What a kubeconfig refers to outside of itself: programs that kube would run when it makes a client, and files that it
//! would read, with the rights of this process.

use kube::config::{AuthInfo, Cluster};

/// What may stand outside, by who wrote the kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    /// A text of anybody, such as what a Secret holds.
    Nothing,
    /// A file that somebody looks at: certificates and keys may be renewed beside it, and none of them is sent away. What a
    /// `tokenFile` names is sent to the server.
    Certificates,
    /// The cloud-config that a program was started with: who gave it gave the files beside it too.
    Files,
    /// The kubeconfig of the person who runs this, as kubectl takes it.
    Everything,
}

/// The fields that are not taken.
pub(crate) fn refused(cluster: &Cluster, user: &AuthInfo, allowed: Outside) -> Vec<&'static str> {
    let is_named = |file: &Option<String>| file.as_ref().is_some_and(|file| !file.is_empty());
    let programs = [(user.exec.is_some(), "exec"), (user.auth_provider.is_some(), "auth-provider")];
    let token = [(is_named(&user.token_file), "tokenFile")];
    let certificates = [
        (is_named(&user.client_certificate), "client-certificate"),
        (is_named(&user.client_key), "client-key"),
        (is_named(&cluster.certificate_authority), "certificate-authority"),
    ];
    let fields = match allowed {
        Outside::Nothing => [&programs[..], &token, &certificates].concat(),
        Outside::Certificates => [&programs[..], &token].concat(),
        Outside::Files => programs.to_vec(),
        Outside::Everything => vec![],
    };
    fields.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect()
}
