//! `PreCreateCheck`, `Create`, `Remove` in this process.

use crate::support::{Harvester, MACHINE, NAMESPACE, key, long_user_data, vm_path};

#[tokio::test(start_paused = true)]
async fn a_machine_comes_up_and_goes() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[("harvester-user-data", long_user_data())]);
    let before = harvester.server.audit().total();
    driver.pre_create_check().await.unwrap();
    assert!(std::fs::read_dir(store.path()).unwrap().next().is_none(), "nothing is written before Create");
    assert!(harvester.vm().await.is_null());
    driver.create().await.unwrap();

    let requests = harvester.asked(before);
    assert!(requests.len() <= 14, "two more are left for GetState: {requests:#?}");
    let vm = harvester.vm().await;
    assert_eq!(vm["metadata"]["labels"]["nodepool.harvesterhci.io/pool"], "pool1");
    let uid = &vm["metadata"]["uid"];
    let secret = harvester.secret().await;
    assert_eq!(&secret["metadata"]["ownerReferences"][0]["uid"], uid);
    assert!(secret["data"]["userdata"].is_string(), "{secret}");
    let config = driver.config();
    assert_eq!(config.ip_address, driver.ip().await.unwrap());
    assert!(config.ip_address.starts_with("198.18.7."), "{}", config.ip_address);
    assert_eq!(
        (config.ssh_public_key.as_str(), config.server_version.as_str()),
        (key().public.as_str(), "v1.7.1")
    );
    let folder = store.path().join("machines").join(MACHINE);
    assert_eq!(config.ssh_key_path, folder.join("id_rsa").display().to_string());
    assert_eq!(std::fs::read_to_string(folder.join("id_rsa.pub")).unwrap(), key().public);

    let before = harvester.server.audit().total();
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
    let requests = harvester.asked(before);
    assert!(requests.contains(&format!("patch {}", vm_path())), "its volumes are named: {requests:#?}");
    let error = driver.state().await.unwrap_err().to_string();
    assert_eq!(error, format!("VM {NAMESPACE}/{MACHINE} not found"));
    driver.remove().await.expect("gone is gone");
}
