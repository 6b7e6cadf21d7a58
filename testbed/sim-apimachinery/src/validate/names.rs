//! The forms of names, label keys and label values, and what is said about those that have none of them.
//!
//! Every function answers with the faults found, none for a good value.

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// A DNS label of RFC 1123: lower case, digits and `-`, at most 63 bytes.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut faults = too_long(value, 63, "characters");
    if !is_dns1123_label(value) {
        if is_dns1123_subdomain(value) {
            faults.push("must not contain dots".to_owned());
        } else {
            faults.push(format!(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                 '{DNS_LABEL}')"
            ));
        }
    }
    faults
}

/// DNS labels joined by dots, at most 253 bytes.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    subdomain(value, "characters")
}

fn subdomain(value: &str, unit: &str) -> Vec<String> {
    let mut faults = too_long(value, 253, unit);
    if !is_dns1123_subdomain(value) {
        faults.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{DNS_LABEL}(\\.{DNS_LABEL})*')"
        ));
    }
    faults
}

/// A DNS label of RFC 1035: as RFC 1123, but starting with a letter.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut faults = too_long(value, 63, "characters");
    if !(is_dns1123_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        faults.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    faults
}

/// The name of a port: at most 15 of lower case, digits and `-`, with a letter, no `--`.
pub fn port_name(value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if value.len() > 15 {
        faults.push("must be no more than 15 characters".to_owned());
    }
    if !value.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        faults.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        faults.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        faults.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        faults.push("must not begin or end with a hyphen".to_owned());
    }
    faults
}

/// A key of a ConfigMap or Secret: letters, digits, `-`, `_`, `.`, at most 253 bytes.
pub fn config_key(value: &str) -> Vec<String> {
    let mut faults = too_long(value, 253, "characters");
    if value.is_empty() || !value.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c)) {
        faults.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match value {
        "." | ".." => faults.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => faults.push("must not start with '..'".to_owned()),
        _ => {}
    }
    faults
}

/// A name that can stand in a path (Roles and ClusterRoles have no stricter form).
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].into_iter().filter(|c| value.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A label key: a name of at most 63 bytes, with an optional DNS prefix and `/`.
pub fn label_key(value: &str) -> Vec<String> {
    let rule = format!(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
         character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{LABEL_KEY}')"
    );
    let mut faults = Vec::new();
    let parts = value.split('/').collect::<Vec<_>>();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                faults.extend(
                    dns1123_subdomain(prefix).into_iter().map(|fault| format!("prefix part {fault}")),
                );
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        faults.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_label_text(name) {
        faults.push(format!("name part {rule}"));
    }
    faults
}

/// A label value: empty, or at most 63 bytes that start and end alphanumeric.
pub fn label_value(value: &str) -> Vec<String> {
    let mut faults = too_long(value, 63, "bytes");
    if !value.is_empty() && !is_label_text(value) {
        faults.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '({LABEL_KEY})?')"
        ));
    }
    faults
}

/// The real server counts bytes, but calls them characters where it checks names.
fn too_long(value: &str, max: usize, unit: &str) -> Vec<String> {
    if value.len() > max { vec![format!("must be no more than {max} {unit}")] } else { Vec::new() }
}

fn is_label_text(value: &str) -> bool {
    let edge = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

fn is_dns1123_label(value: &str) -> bool {
    let edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let bytes = value.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
}

fn is_dns1123_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns1123_label)
}
