//! How many records one pool has room for.

use super::*;

// docs/contract/addresses.md#3
#[test]
fn a_pool_has_room_for_about_fifteen_thousand_holders_with_names_of_35_bytes() {
    let object = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "192.168.0.0/16"}]}});
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let holder = |n: usize| format!("shop/{n:030}");
    assert_eq!(holder(0).len(), 35);
    let orders: Vec<_> = (0..20_000).map(|n| claim(&holder(n))).collect();
    let decision = decided(&pool, &orders);
    let given = decision.answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((14_500..=16_000).contains(&given), "{given}");
    let is_full = |answer: &Result<Answer, Refused>| matches!(answer, Err(Refused::RecordFull { records, .. }) if *records == given);
    assert!(decision.answers[given..].iter().all(is_full), "{:?}", decision.answers[given]);
    let allocated = status(&decision).allocated;
    let size: usize = allocated.iter().map(|(key, holder)| bytes_in_store(key, holder)).sum();
    assert!(allocated.len() == given && pool.size() + size <= RECORD_LIMIT, "{size}");
}
