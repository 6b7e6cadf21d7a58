//! Every field of every request, and CSI's code for it.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Code;

use super::{driver::Driver, of_controller::controller, of_node::node, rows::Rows};

/// The fields of each request, as the protobuf file has them.
fn fields() -> BTreeMap<String, BTreeSet<String>> {
    let (mut all, mut message) = (BTreeMap::<_, BTreeSet<_>>::new(), None);
    for line in include_str!("../../proto/csi.proto").lines() {
        let text = line.trim();
        if let Some(name) = line.strip_prefix("message ") {
            message = name.split(' ').next().unwrap().strip_suffix("Request").map(str::to_owned);
        } else if let (Some(message), Some((declared, _))) = (&message, text.split_once(" = "))
            && !text.starts_with("//")
            && !text.starts_with("option ")
            && !text.starts_with("[")
        {
            let name = declared.rsplit(' ').next().unwrap();
            all.entry(message.clone()).or_default().insert(name.to_owned());
        }
    }
    all.retain(|name, _| !name.contains("VolumeGroup") && !name.starts_with("GetMetadata"));
    all
}

#[tokio::test(start_paused = true)]
async fn every_field_of_every_request_has_its_code() {
    let driver = Driver::new().await;
    let mut rows = Rows::default();
    controller(&mut rows);
    node(&mut rows, &driver);
    let mut missing = vec![];
    for (message, fields) in fields() {
        for field in fields {
            let is_it = |method: &str, of: &str| method.split('/').nth(1) == Some(&message) && of == field;
            if !rows.0.iter().any(|(method, of, ..)| is_it(method, of)) {
                missing.push(format!("{message}.{field}"));
            }
        }
    }
    assert!(missing.is_empty(), "no row for {missing:?}");
    let mut wrong = vec![];
    for (method, field, what, message, code) in &rows.0 {
        let status = driver.answer(method, message).await;
        if status.code() != *code || status.message().contains('\n') {
            wrong.push(format!(
                "{method} {field} {what}: {:?}, not {code:?}: {}",
                status.code(),
                status.message()
            ));
        }
        // a field of a later specification changes nothing
        let later = [message.as_slice(), &[0xfa, 0x3e, 0x01, 0x78]].concat();
        let again = driver.answer(method, &later).await;
        if again.code() != *code {
            wrong.push(format!("{method} {field} {what}, with an unknown field: {again}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.0.len(), wrong.join("\n"));
    assert_eq!(driver.code("Identity/Probe", &()).await, Code::Ok);
}
