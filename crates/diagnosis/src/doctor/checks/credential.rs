//! The credentials for Harvester, the cloud-config's and Rancher's: whether they count, and how long.

use cloud_config::expiry::{Expiry, WARN_BEFORE};
use credential_rotation::{Renewal, token::Claims};
use jiff::Timestamp;

use super::{
    super::{
        Outcome,
        facts::{Config, Facts, Failed, Trouble},
        read,
    },
    answer, config, got,
};
use crate::shell::shell_word;

/// The words that name the account of the cloud-config to `cloud-config generate`.
fn account(config: &Config) -> String {
    let account = config.claims.as_ref().map_or("ACCOUNT".to_owned(), |claims| shell_word(&claims.account));
    format!("{account} {}", shell_word(&config.namespace))
}

/// The flag by which the token is again one that is renewed.
fn rotate(config: &Config) -> &'static str {
    if config.claims.as_ref().is_some_and(Claims::is_made_to_rotate) { "--rotate " } else { "" }
}

/// The command of an administrator of Harvester. What it prints goes into a new file, because a shell empties a file before the
/// command starts, and would empty the one in use; `umask 077` keeps others from reading it.
const GENERATE: &str =
    "KUBECONFIG=harvester.kubeconfig harvester-cloud-provider cloud-config generate --format kubeconfig";

/// What makes the cloud-config anew, as a command.
pub(super) fn anew(config: &Config) -> String {
    format!(
        "with an administrator's kubeconfig of Harvester run `(umask 077; {GENERATE} {}{} > new-cloud-config)`, and put the \
         file where the former one is",
        rotate(config),
        account(config)
    )
}

/// What makes one with a token that does not end, as a command.
pub(super) fn lasting(config: &Config) -> String {
    format!(
        "with an administrator's kubeconfig of Harvester run `(umask 077; {GENERATE} {} > new-cloud-config)`",
        account(config)
    )
}

/// What binds the roles of the cloud provider to the account, or of the CSI driver too, as a command. The cloud-config that it
/// prints is not needed: the one in use is valid.
pub(super) fn bind(config: &Config, of_driver: bool) -> String {
    let part = if of_driver { "--for csi " } else { "" };
    let rotate = rotate(config);
    format!(
        "an administrator of Harvester binds it by `{GENERATE} {part}{rotate}{} > /dev/null`",
        account(config)
    )
}

/// What helps where the context names another namespace than the account's: rights that somebody binds there are for another
/// account of that name.
pub(super) fn of_own_namespace(config: &Config) -> Option<String> {
    let claims = config.claims.as_ref().filter(|claims| claims.namespace != config.namespace)?;
    Some(format!(
        "the context names namespace {there}, and account {} is of namespace {own}: set `namespace: {own}` in the context of {}; \
         if the guest cluster's machines are in {there}, have an administrator of Harvester make a cloud-config for that one",
        claims.account,
        config.file,
        there = config.namespace,
        own = claims.namespace,
    ))
}

pub(super) fn login(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    // everybody may read /version; the list shows whether the credential counts
    let answers = [read::balancers(&config.namespace), read::VERSION.to_owned()];
    for failed in answers.iter().filter_map(|path| answer(&facts.harvester, path).as_ref().err()) {
        refused(failed, &anew(config))?;
    }
    if answers.iter().all(|path| answer(&facts.harvester, path).is_err()) {
        got(&facts.harvester, read::VERSION)?;
    }
    Ok(Outcome::green("the credential is valid"))
}

/// Whether these are the words of Rancher for a Harvester that it does not have.
pub(super) fn is_unknown_to_rancher(failed: &Failed) -> bool {
    failed.why.contains("clusters.management.cattle.io")
}

/// An error where the server does not know the credential.
fn refused(failed: &Failed, mend: &str) -> Result<(), Outcome> {
    if is_unknown_to_rancher(failed) {
        return Err(Outcome::red(
            format!("Rancher does not know this Harvester any more: {}", failed.why),
            format!(
                "Harvester was imported into Rancher anew (rancher issue 53642): renew the cloud credential in Rancher (Cluster \
                 Management → Cloud Credentials), then {mend}"
            ),
        ));
    }
    if failed.trouble == Trouble::Unauthorized {
        return Err(Outcome::red(
            format!("Harvester refuses the credential: {}", failed.why),
            format!("the token was revoked or has ended (harvester issue 5827): {mend}"),
        ));
    }
    Ok(())
}

/// What is said of an authority of which every certificate has ended, or will have within a week. rustls, by which these programs
/// connect, does not look at the end of an authority; Go does.
pub(super) fn end_of_authority(config: &Config, facts: &Facts) -> Option<String> {
    let end = |end: &Expiry| match end {
        Expiry::At(end) => Some(*end),
        Expiry::Never | Expiry::Unknown => None,
    };
    let ends: Option<Vec<Timestamp>> = config.authorities.iter().map(end).collect();
    let last = ends?.into_iter().max()?;
    let left = last.duration_since(facts.now_in_harvester());
    let word = if left.is_positive() { "ends" } else { "ended" };
    (left < WARN_BEFORE).then(|| {
        format!(
            "the certificate authority of the cloud-config {word} at {last}: after that kubectl and all programs in Go refuse \
             the server"
        )
    })
}

pub(super) fn life(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    let outcome = lasts(config.expiry, config.renewal.as_ref(), facts, &anew(config));
    Ok(outcome.and(config.note.as_deref()))
}

pub(super) fn rancher_credential(facts: &Facts) -> Result<Outcome, Outcome> {
    let Some(credential) = &facts.rancher else {
        return Err(Outcome::not_asked(
            "give it by --rancher-credential: key harvestercredentialConfig-kubeconfigContent of its Secret in namespace \
             cattle-global-data of Rancher",
        ));
    };
    let mend = "renew the cloud credential in Rancher (Cluster Management → Cloud Credentials)";
    let credential = credential.as_ref().map_err(|why| Outcome::red(why.clone(), mend))?;
    if let Err(failed) = &credential.answer {
        refused(failed, mend)?;
        return Err(Outcome::red(format!("{} cannot be used: {}", credential.server, failed.why), mend));
    }
    Ok(lasts(credential.expiry, None, facts, mend))
}

/// Below a week something is wrong, unless somebody renews it in time.
fn lasts(expiry: Expiry, renewal: Option<&Renewal>, facts: &Facts, mend: &str) -> Outcome {
    match (expiry, expiry.remaining(facts.now_in_harvester())) {
        (Expiry::At(end), Some(left)) if !left.is_positive() => {
            Outcome::red(format!("it ended at {end} (harvester issue 5827)"), mend)
        }
        (Expiry::At(end), Some(left)) if left < WARN_BEFORE => match renewal {
            Some(renewal) if renewal.is_in_time(left) => Outcome::green(format!(
                "it ends at {end}, renewed by the leader that writes Secret {}",
                renewal.secret
            )),
            Some(renewal) => Outcome::amber(
                format!(
                    "it ends at {end}, and the leader that writes Secret {} is late to renew it",
                    renewal.secret
                ),
                format!(
                    "`kubectl --namespace {} get events --field-selector reason=CredentialNotRotated` says why it is not \
                     renewed",
                    shell_word(&renewal.secret.namespace)
                ),
            ),
            None => Outcome::amber(format!("it ends at {end}, in {} days", left.as_hours() / 24), mend),
        },
        (Expiry::At(end), _) => Outcome::green(format!("it ends at {end}")),
        (Expiry::Never, _) => Outcome::green("it does not end"),
        (Expiry::Unknown, _) => Outcome::not_asked("the credential does not say when it ends"),
    }
}
