//! One rule: which requests, how often, and what they get.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::Aim;
use crate::Failure;
use crate::request::Verb;

/// The verbs that a rule may name.
const VERBS: [Verb; 8] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
];

/// The codes that an API server answers, with their reasons: a person's rules may have these.
const CODES: [(u16, &str); 13] = [
    (400, "BadRequest"),
    (401, "Unauthorized"),
    (403, "Forbidden"),
    (404, "NotFound"),
    (405, "MethodNotAllowed"),
    (409, "Conflict"),
    (410, "Expired"),
    (413, "RequestEntityTooLarge"),
    (422, "Invalid"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
    (504, "Timeout"),
];

/// Whether the request is carried out all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// It is not carried out.
    #[default]
    Before,
    /// It is, and only the answer is lost.
    After,
}

/// The answer to a request that the rule hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A `Status` of this code: 403, 409, 410 (of a watch: inside its stream), 429 (with `Retry-After: 1`), 500, …
    Code(u16),
    /// No answer: the connection breaks. A watch breaks after its first events.
    Drop,
    /// The right answer, late.
    Delay(Duration),
}

/// A rule. What is not given matches everything; `*` as the last character of a text matches any end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Name of the user, or what follows its last colon. Without it, everybody but the administrator.
    #[serde(default)]
    pub user: Option<String>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    #[serde(default)]
    pub verb: Option<String>,
    /// Plural, with a subresource where one is meant: `services`, `services/status`.
    #[serde(default)]
    pub resource: Option<String>,
    /// Name of the object.
    #[serde(default)]
    pub name: Option<String>,
    /// Only the nth request that matches, counted from 1.
    #[serde(default)]
    pub nth: Option<u64>,
    /// Only with this chance, 0 to 1.
    #[serde(default)]
    pub probability: Option<f64>,
    /// The answer to the request.
    #[serde(deserialize_with = "answer")]
    pub answer: Answer,
    /// Carries the request out all the same.
    #[serde(default)]
    pub when: When,
}

/// The fault that hits a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) answer: Answer,
    pub(crate) when: When,
}

fn answer<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Answer, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    parse_answer(&text).ok_or_else(|| {
        let codes = CODES.map(|(code, _)| code.to_string()).join(", ");
        let example = format!("one of {codes}, \"drop\", or a delay such as \"delay=2s\"");
        serde::de::Error::custom(format!("answer {text:?}: expected {example}"))
    })
}

fn parse_answer(text: &str) -> Option<Answer> {
    if text == "drop" {
        return Some(Answer::Drop);
    }
    if let Some(delay) = text.strip_prefix("delay=") {
        let milliseconds = match delay.strip_suffix("ms") {
            Some(number) => number.parse::<f64>().ok()?,
            None => delay.strip_suffix('s')?.parse::<f64>().ok()? * 1000.0,
        };
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok().map(Answer::Delay);
    }
    text.parse().ok().filter(|code| CODES.iter().any(|(known, _)| known == code)).map(Answer::Code)
}

impl Rule {
    /// A rule that hits every request of everybody but the administrator.
    #[must_use]
    pub fn new(answer: Answer) -> Self {
        Self {
            user: None,
            verb: None,
            resource: None,
            name: None,
            nth: None,
            probability: None,
            answer,
            when: When::Before,
        }
    }

    /// Reads a YAML list of rules; nothing is no rules.
    ///
    /// # Errors
    /// Says what is wrong with which rule.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        if text.trim().is_empty() {
            return Ok(vec![]);
        }
        let rules: Vec<Value> =
            serde_saphyr::from_str(text).map_err(|e| format!("a YAML list of rules is expected: {e}"))?;
        rules
            .into_iter()
            .enumerate()
            .map(|(i, rule)| {
                let rule: Self = serde_json::from_value(rule).map_err(|e| format!("rule {}: {e}", i + 1))?;
                let wrong = rule.wrong();
                if wrong.is_empty() { Ok(rule) } else { Err(format!("rule {}: {}", i + 1, wrong.join("; "))) }
            })
            .collect()
    }

    /// Everything because of which the rule could never hit a request.
    fn wrong(&self) -> Vec<String> {
        let Self { user, verb, resource, name, nth, probability, answer: _, when: _ } = self;
        let mut wrong = vec![];
        for (field, text) in [("user", user), ("name", name)] {
            if let Some(text) = text.as_deref().filter(|text| text.is_empty() || star_before_end(text)) {
                wrong.push(format!("{field} {text:?} fits nothing: `*` stands for any end, and only there"));
            }
        }
        if let Some(verb) = verb {
            let meant: Vec<_> = VERBS.into_iter().filter(|known| fits(verb, known.as_str())).collect();
            if meant.is_empty() {
                let known = VERBS.map(Verb::as_str).join(", ");
                wrong.push(format!("verb {verb:?} is none of {known}"));
            } else if let Some(name) = name
                && meant.iter().all(|verb| !has_name(*verb, resource.as_deref()))
            {
                wrong.push(format!("requests to {verb} have no name in their path, so none has {name:?}"));
            }
        }
        if let Some(resource) = resource.as_deref().filter(|resource| !is_resource(resource)) {
            wrong.push(format!(
                "resource {resource:?}: expected a plural without its group, such as pods or services/status"
            ));
        }
        if *nth == Some(0) {
            wrong.push("nth 0: requests are counted from 1".to_owned());
        }
        if let Some(chance) = probability.filter(|chance| !(0.0..=1.0).contains(chance)) {
            wrong.push(format!("probability {chance} is not between 0 and 1"));
        }
        wrong
    }

    /// The plural that the rule is for, where it names one.
    pub(super) fn plural(&self) -> Option<&str> {
        let resource = self.resource.as_deref()?;
        match resource.split_once('/') {
            Some((plural, _)) => Some(plural),
            None => Some(resource).filter(|resource| !resource.ends_with('*')),
        }
    }

    pub(super) fn matches(&self, aim: Aim<'_>) -> bool {
        let fits =
            |wanted: &Option<String>, given: &str| wanted.as_deref().is_none_or(|wanted| fits(wanted, given));
        let short = aim.user.rsplit(':').next().unwrap_or_default();
        (self.user.is_some() || !aim.is_admin)
            && (fits(&self.user, aim.user) || fits(&self.user, short))
            && fits(&self.verb, aim.verb)
            && fits(&self.resource, aim.resource)
            && fits(&self.name, aim.name)
    }

    /// Whether the rule hits its `matched`th request.
    pub(super) fn fires(&self, matched: u64, chance: impl FnOnce() -> f64) -> bool {
        self.nth.is_none_or(|nth| nth == matched) && self.probability.is_none_or(|p| chance() < p)
    }

    pub(super) fn fault(&self) -> Fault {
        Fault { answer: self.answer.clone(), when: self.when }
    }
}

/// Whether a rule's text means what a request gives.
fn fits(wanted: &str, given: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => given.starts_with(start),
        None => given == wanted,
    }
}

fn star_before_end(text: &str) -> bool {
    text.find('*').is_some_and(|at| at + 1 < text.len())
}

/// Whether requests of this verb name an object in their path.
fn has_name(verb: Verb, resource: Option<&str>) -> bool {
    match verb {
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => true,
        // what is created at a subresource belongs to an object that is there
        Verb::Create => resource.is_none_or(|resource| resource.contains(['/', '*'])),
        Verb::List | Verb::Watch | Verb::DeleteCollection => false,
    }
}

/// Whether this is a plural or a plural with its subresource, or the beginning of one and `*`.
fn is_resource(text: &str) -> bool {
    let whole = text.strip_suffix('*').map(|start| format!("{start}x"));
    let words: Vec<_> = whole.as_deref().unwrap_or(text).split('/').collect();
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    words.len() <= 2 && words.into_iter().all(is_word)
}

/// The `Status` of an injected code.
pub(crate) fn status(code: u16) -> Failure {
    let text = "injected by a rule of kube-system/sim-faults or of the test";
    match code {
        429 => Failure::too_many_requests(
            "the server has received too many requests and has asked us to try again later",
            1,
        ),
        410 => Failure::expired(format!("too old resource version ({text})")),
        500 => Failure::internal(text),
        503 => Failure::unavailable(text),
        _ => {
            let reason = CODES.iter().find(|(known, _)| *known == code).map_or("", |(_, reason)| reason);
            let name = StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
            let message = format!("{}: {text}", name.unwrap_or("fault"));
            Failure { code, reason, message, details: Value::Null }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("409", Some(Answer::Code(409)))]
    #[case("drop", Some(Answer::Drop))]
    #[case("delay=2s", Some(Answer::Delay(Duration::from_secs(2))))]
    #[case("delay=1.5s", Some(Answer::Delay(Duration::from_millis(1500))))]
    #[case("delay=20ms", Some(Answer::Delay(Duration::from_millis(20))))]
    #[case("delay=-1s", None)]
    #[case("delay=2", None)]
    #[case("200", None)]
    #[case("418", None)]
    #[case("", None)]
    fn answers(#[case] text: &str, #[case] answer: Option<Answer>) {
        assert_eq!(parse_answer(text), answer);
    }

    #[test]
    fn rules_are_a_yaml_list_and_a_wrong_one_is_named() {
        let rules = Rule::parse("- verb: update\n  resource: pods\n  nth: 3\n  answer: 409\n  when: after\n");
        let rule = Rule {
            verb: Some("update".into()),
            resource: Some("pods".into()),
            nth: Some(3),
            when: When::After,
            ..Rule::new(Answer::Code(409))
        };
        assert_eq!(rules, Ok(vec![rule]));
        assert_eq!(Rule::parse("\n"), Ok(vec![]));
        for wrong in ["- answer: maybe", "- answer: 409\n  vreb: get", "verb: get"] {
            assert!(Rule::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Rule::parse("- answer: 409\n- {}").unwrap_err().starts_with("rule 2: "));
    }

    #[rstest]
    #[case("verb: updat", "verb \"updat\" is none of get, list")]
    #[case("verb: x*", "verb \"x*\" is none of")]
    #[case("nth: 0", "counted from 1")]
    #[case("probability: 7", "not between 0 and 1")]
    #[case("resource: widgets.example.com", "a plural without its group")]
    #[case("resource: Pod", "a plural without its group")]
    #[case("resource: services/", "a plural without its group")]
    #[case("resource: '*/status'", "a plural without its group")]
    #[case("resource: ''", "a plural without its group")]
    #[case("user: ''", "user \"\" fits nothing")]
    #[case("name: we*b", "name \"we*b\" fits nothing")]
    #[case("verb: create, resource: services, name: web", "requests to create have no name in their path")]
    #[case("verb: watch, name: web", "requests to watch have no name in their path")]
    #[case("verb: updat, nth: 0", "; nth 0")]
    fn a_rule_that_could_never_hit_is_refused(#[case] rule: &str, #[case] expected: &str) {
        let error = Rule::parse(&format!("- {{{rule}, answer: 500}}")).unwrap_err();
        assert!(error.starts_with("rule 1: ") && error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("verb: delete*, name: web", None)]
    #[case("verb: '*', resource: '*'", None)]
    #[case("resource: ip*", None)]
    #[case("resource: pods", Some("pods"))]
    #[case("resource: services/status", Some("services"))]
    #[case("resource: services/*", Some("services"))]
    #[case("verb: create, resource: pods/eviction, name: web", Some("pods"))]
    #[case(
        "resource: network-attachment-definitions, user: 'system:*'",
        Some("network-attachment-definitions")
    )]
    fn a_rule_that_may_hit_is_taken(#[case] rule: &str, #[case] plural: Option<&str>) {
        let rules = Rule::parse(&format!("- {{{rule}, answer: 500}}")).unwrap();
        assert_eq!(rules[0].plural(), plural);
    }

    #[rstest]
    #[case(Rule::new(Answer::Drop), "ccm", false, true)]
    #[case(Rule::new(Answer::Drop), "admin", true, false)]
    #[case(Rule { user: Some("admin".into()), ..Rule::new(Answer::Drop) }, "admin", true, true)]
    #[case(Rule { user: Some("system:*".into()), ..Rule::new(Answer::Drop) }, "system:x", false, true)]
    #[case(Rule { user: Some("ccm".into()), ..Rule::new(Answer::Drop) }, "lb", false, false)]
    #[case(Rule { user: Some("lb".into()), ..Rule::new(Answer::Drop) }, "system:serviceaccount:a:lb", false, true)]
    #[case(Rule { user: Some("lb".into()), ..Rule::new(Answer::Drop) }, "system:serviceaccount:a:lb-webhook", false, false)]
    #[case(Rule { resource: Some("services".into()), ..Rule::new(Answer::Drop) }, "ccm", false, false)]
    fn a_rule_hits_whom_it_means(
        #[case] rule: Rule,
        #[case] user: &str,
        #[case] is_admin: bool,
        #[case] hit: bool,
    ) {
        let aim = Aim { user, is_admin, verb: "get", resource: "pods", namespace: "", name: "default" };
        assert_eq!(rule.matches(aim), hit);
    }
}
