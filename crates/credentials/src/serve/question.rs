//! What a request asks for, and who asks. Pure.

use std::str;

use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

use crate::{
    plan,
    request::{Format, Part, Request},
};

/// Longest token: the API server's own limit for all headers is no larger.
const TOKEN_MAX: usize = 8 << 10;
/// Names are labels of DNS.
const NAME_MAX: usize = 63;

/// Why there is no kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) why: String,
}

pub(crate) fn refuse(status: StatusCode, why: impl Into<String>) -> Refusal {
    Refusal { status, why: why.into() }
}

/// The fields of the documentation; others mean nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Fields {
    namespace: String,
    service_account_name: String,
    cluster_role_name: String,
    output_format: String,
}

impl Fields {
    /// Of the body of a POST.
    ///
    /// # Errors
    /// 400: it is no JSON of this shape.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, Refusal> {
        let refusal = || {
            let form = r#"{"namespace": "…", "serviceAccountName": "…", "outputFormat": "yaml"}"#;
            refuse(StatusCode::BAD_REQUEST, format!("the body is no JSON object like {form}"))
        };
        // serde takes a list for an object, too
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(refusal());
        }
        serde_json::from_slice(body).map_err(|_| refusal())
    }

    /// Of the query of a GET: names are as they are; what is escaped in it is no name.
    pub(crate) fn of_query(query: &str) -> Self {
        let mut fields = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let field = match name {
                "namespace" => &mut fields.namespace,
                "serviceAccountName" => &mut fields.service_account_name,
                "clusterRoleName" => &mut fields.cluster_role_name,
                "outputFormat" => &mut fields.output_format,
                _ => continue,
            };
            // the one sign that the role's name has and that some clients escape
            *field = value.replace("%3A", ":").replace("%3a", ":");
        }
        fields
    }
}

/// A checked question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) request: Request,
    /// User data for cloud-init; else the kubeconfig as a JSON string.
    pub(crate) yaml: bool,
}

impl Question {
    /// # Errors
    /// 400: a name is no label of DNS, or the role is another one.
    pub(crate) fn of(fields: Fields, server: Option<&str>, check: bool) -> Result<Self, Refusal> {
        let Fields { namespace, service_account_name: account, cluster_role_name: role, output_format } =
            fields;
        for (field, name) in [("namespace", &namespace), ("serviceAccountName", &account)] {
            if !is_label(name) {
                let why = format!("{field} is no name of at most {NAME_MAX} characters of a-z, 0-9 and -");
                return Err(refuse(StatusCode::BAD_REQUEST, why));
            }
        }
        // what it may do each Pod of its namespace might that names no account
        if account == "default" {
            let why = "serviceAccountName default is the account of every Pod of its namespace: name the guest cluster";
            return Err(refuse(StatusCode::BAD_REQUEST, why));
        }
        if !["", plan::CLOUD_PROVIDER].contains(&role.as_str()) {
            let why = format!("clusterRoleName can be {} and no other", plan::CLOUD_PROVIDER);
            return Err(refuse(StatusCode::BAD_REQUEST, why));
        }
        let request = Request {
            // the driver needs it too (docs/contract/csi-driver.md#rights)
            part: Part::CsiDriver,
            account,
            namespace,
            format: Format::Kubeconfig,
            server: server.map(str::to_owned),
            least: false,
            keep: false,
            check,
            rotate: None,
        };
        Ok(Self { request, yaml: output_format == "yaml" })
    }
}

fn is_label(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= NAME_MAX
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || *it == b'-')
}

/// The token of the caller: the one thing of the request's headers that Harvester will see.
///
/// # Errors
/// 401: there is none, or something else. 400: the caller asks to be somebody else.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        let why = "Impersonate-* is not passed on to Harvester: send the token of whoever asks";
        return Err(refuse(StatusCode::BAD_REQUEST, why));
    }
    let none = || {
        refuse(
            StatusCode::UNAUTHORIZED,
            "send Authorization: Bearer with a token of Harvester; access keys (Basic) are for Rancher's own address",
        )
    };
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return Err(none()) };
    let text = str::from_utf8(value.as_bytes()).map_err(|_| none())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(none)?;
    let is_token =
        !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(|it| it.is_ascii_graphic());
    if scheme.eq_ignore_ascii_case("bearer") && is_token { Ok(token) } else { Err(none()) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[rstest]
    #[case::usual(&[("authorization", "Bearer abc.def")], Ok("abc.def"))]
    #[case::lower_case(&[("authorization", "bearer kubeconfig-u:x")], Ok("kubeconfig-u:x"))]
    #[case::nothing(&[], Err(401))]
    #[case::basic(&[("authorization", "Basic YTpi")], Err(401))]
    #[case::empty(&[("authorization", "Bearer ")], Err(401))]
    #[case::two_words(&[("authorization", "Bearer a b")], Err(401))]
    #[case::two_headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")], Err(401))]
    #[case::impersonation(&[("authorization", "Bearer a"), ("impersonate-user", "admin")], Err(400))]
    #[case::impersonation_of_a_group(&[("authorization", "Bearer a"), ("impersonate-group", "x")], Err(400))]
    fn the_callers_token_alone_counts(
        #[case] all: &[(&'static str, &'static str)],
        #[case] expected: Result<&str, u16>,
    ) {
        let headers = headers(all);
        assert_eq!(bearer(&headers).map_err(|refusal| refusal.status.as_u16()), expected);
    }

    #[test]
    fn a_token_of_nine_kib_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "authorization",
            HeaderValue::try_from(format!("Bearer {}", "a".repeat(9 << 10))).unwrap(),
        );
        assert!(bearer(&headers).is_err());
    }

    fn asked(query: &str) -> Result<Question, Refusal> {
        Question::of(Fields::of_query(query), None, true)
    }

    #[rstest]
    #[case::usual("namespace=vms&serviceAccountName=demo", Some(false))]
    #[case::yaml("outputFormat=yaml&namespace=vms&serviceAccountName=demo", Some(true))]
    #[case::another_form("outputFormat=xml&namespace=vms&serviceAccountName=demo&x=y", Some(false))]
    #[case::role(
        "clusterRoleName=harvesterhci.io:cloudprovider&namespace=vms&serviceAccountName=demo",
        Some(false)
    )]
    #[case::escaped(
        "clusterRoleName=harvesterhci.io%3Acloudprovider&namespace=vms&serviceAccountName=demo",
        Some(false)
    )]
    #[case::another_role("clusterRoleName=cluster-admin&namespace=vms&serviceAccountName=demo", None)]
    #[case::account_of_every_pod("namespace=vms&serviceAccountName=default", None)]
    #[case::dots("namespace=vms&serviceAccountName=a.b", None)]
    #[case::a_path("namespace=../x&serviceAccountName=a", None)]
    #[case::escapes("namespace=a%2Fb&serviceAccountName=a", None)]
    #[case::no_account("namespace=vms", None)]
    #[case::nothing("", None)]
    fn a_question_has_two_names_and_the_one_role(#[case] query: &str, #[case] yaml: Option<bool>) {
        let question = asked(query);
        assert_eq!(question.as_ref().ok().map(|question| question.yaml), yaml, "{question:?}");
        assert!(question.err().is_none_or(|refusal| refusal.status == StatusCode::BAD_REQUEST));
    }

    #[test]
    fn a_body_says_the_same_as_a_query() {
        let body = br#"{"namespace":"vms","serviceAccountName":"demo","outputFormat":"yaml","more":1}"#;
        let question = Question::of(Fields::of_body(body).unwrap(), None, true);
        assert_eq!(question, asked("namespace=vms&serviceAccountName=demo&outputFormat=yaml"));
        for odd in [&b"[]"[..], b"", b"{\"namespace\": 1}", b"\xff", b"{"] {
            assert!(Fields::of_body(odd).is_err(), "{odd:?}");
        }
        let long = "a".repeat(64);
        assert!(asked(&format!("namespace={long}&serviceAccountName=demo")).is_err());
    }
}
