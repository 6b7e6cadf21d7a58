//! Label selectors: `app=web,tier in (a, b),!old`.

use serde_json::Value;

use super::{Error, check_key, fault};
use crate::validate::names;

/// A conjunction of requirements on labels; the empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Reads the text form.
    ///
    /// # Errors
    /// With the words of the real server.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut tokens = Tokens(text);
        let mut requirements = Vec::new();
        loop {
            match tokens.peek() {
                Token::End => return Ok(Self(requirements)),
                Token::Word(_) | Token::Sign("!") => {}
                Token::Sign(sign) => {
                    return Err(Error(format!(
                        "found '{sign}', expected: !, identifier, or 'end of string'"
                    )));
                }
            }
            requirements.push(requirement(&mut tokens)?);
            match tokens.next() {
                Token::End => return Ok(Self(requirements)),
                Token::Sign(",") => match tokens.peek() {
                    Token::Word(_) | Token::Sign("!") => {}
                    other => {
                        return Err(Error(format!(
                            "found '{}', expected: identifier after ','",
                            other.text()
                        )));
                    }
                },
                other => {
                    return Err(Error(format!("found '{}', expected: ',' or 'end of string'", other.text())));
                }
            }
        }
    }

    /// Reads the object form (`matchLabels`, `matchExpressions`) of webhook configurations and workloads; what does
    /// not make sense matches nothing.
    pub fn of_object(selector: &Value) -> Self {
        let texts = |value: &Value| {
            value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let equal =
            selector["matchLabels"].as_object().into_iter().flatten().map(|(key, value)| Requirement {
                key: key.clone(),
                test: Test::In(value.as_str().into_iter().map(str::to_owned).collect()),
            });
        let expressions =
            selector["matchExpressions"].as_array().into_iter().flatten().map(|e| Requirement {
                key: e["key"].as_str().unwrap_or_default().to_owned(),
                test: match e["operator"].as_str() {
                    Some("Exists") => Test::Exists,
                    Some("DoesNotExist") => Test::Absent,
                    Some("NotIn") => Test::NotIn(texts(&e["values"])),
                    _ => Test::In(texts(&e["values"])),
                },
            });
        Self(equal.chain(expressions).collect())
    }

    /// Whether the object's labels meet every requirement.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key).and_then(Value::as_str);
            let number = || value.and_then(|v| v.parse::<i64>().ok());
            match &requirement.test {
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
                Test::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
                Test::Above(bound) => number().is_some_and(|n| n > *bound),
                Test::Below(bound) => number().is_some_and(|n| n < *bound),
            }
        })
    }

    /// Whether there is no requirement.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, Error> {
    let wrong = |text: String| Error(format!("unable to parse requirement: {text}"));
    let mut token = tokens.next();
    let negated = token == Token::Sign("!");
    if negated {
        token = tokens.next();
    }
    let Token::Word(key) = token else {
        return Err(wrong(format!("found '{}', expected: identifier", token.text())));
    };
    check_key(key)?;
    let key = key.to_owned();
    if negated {
        return Ok(Requirement { key, test: Test::Absent });
    }
    if matches!(tokens.peek(), Token::End | Token::Sign(",")) {
        return Ok(Requirement { key, test: Test::Exists });
    }
    let operator = tokens.next();
    let test = match operator {
        Token::Word("in") => Test::In(checked(&key, values(tokens).map_err(wrong)?)?),
        Token::Word("notin") => Test::NotIn(checked(&key, values(tokens).map_err(wrong)?)?),
        Token::Sign("=" | "==") => Test::In(checked(&key, vec![value(tokens).map_err(wrong)?])?),
        Token::Sign("!=") => Test::NotIn(checked(&key, vec![value(tokens).map_err(wrong)?])?),
        Token::Sign(">") => Test::Above(bound(&key, &value(tokens).map_err(wrong)?)?),
        Token::Sign("<") => Test::Below(bound(&key, &value(tokens).map_err(wrong)?)?),
        other => {
            let expected = "in, notin, =, ==, !=, gt, lt";
            return Err(wrong(format!("found '{}', expected: {expected}", other.text())));
        }
    };
    Ok(Requirement { key, test })
}

fn checked(key: &str, values: Vec<String>) -> Result<Vec<String>, Error> {
    for (index, value) in values.iter().enumerate() {
        if let Some(error) = fault(&format!("values[{index}][{key}]"), value, &names::label_value(value)) {
            return Err(error);
        }
    }
    Ok(values)
}

fn bound(key: &str, value: &str) -> Result<i64, Error> {
    let detail = "for 'Gt', 'Lt' operators, the value must be an integer".to_owned();
    checked(key, vec![value.to_owned()])?;
    value.parse().map_err(|_| fault("values[0]", value, &[detail]).expect("one detail was given"))
}

fn value(tokens: &mut Tokens<'_>) -> Result<String, String> {
    match tokens.peek() {
        Token::End | Token::Sign(",") => Ok(String::new()),
        Token::Word(word) => {
            tokens.next();
            Ok(word.to_owned())
        }
        Token::Sign(sign) => Err(format!("found '{sign}', expected: identifier")),
    }
}

/// The values of `in (…)`, sorted and without doubles, as the real server keeps them.
fn values(tokens: &mut Tokens<'_>) -> Result<Vec<String>, String> {
    let open = tokens.next();
    if open != Token::Sign("(") {
        return Err(format!("found '{}' expected: '('", open.text()));
    }
    let mut values: Vec<String> = Vec::new();
    // an empty place counts as the empty value: `()`, `(,a)`, `(a,)`
    let mut empty_place = true;
    loop {
        match tokens.next() {
            Token::Word(word) => {
                values.push(word.to_owned());
                empty_place = false;
                match tokens.peek() {
                    Token::Sign("," | ")") => {}
                    other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                }
            }
            Token::Sign(",") => {
                if empty_place {
                    values.push(String::new());
                }
                empty_place = true;
            }
            Token::Sign(")") => {
                if empty_place {
                    values.push(String::new());
                }
                values.sort();
                values.dedup();
                return Ok(values);
            }
            other if values.is_empty() => {
                return Err(format!("found '{}', expected: ',', ')' or identifier", other.text()));
            }
            other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    Sign(&'static str),
    Word(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::End => "",
            Self::Sign(sign) => sign,
            Self::Word(word) => word,
        }
    }
}

/// The rest of the text.
#[derive(Clone)]
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn peek(&self) -> Token<'a> {
        self.clone().next()
    }

    fn next(&mut self) -> Token<'a> {
        const SIGNS: [&str; 9] = ["==", "!=", "=", "!", ">", "<", "(", ")", ","];
        self.0 = self.0.trim_start_matches([' ', '\t', '\r', '\n']);
        if self.0.is_empty() {
            return Token::End;
        }
        for sign in SIGNS {
            if let Some(rest) = self.0.strip_prefix(sign) {
                self.0 = rest;
                return Token::Sign(sign);
            }
        }
        let end = self
            .0
            .find(|c: char| "=!><(),".contains(c) || matches!(c, ' ' | '\t' | '\r' | '\n'))
            .unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        Token::Word(word)
    }
}
