//! The leader's rotation between a guest and a Harvester cluster, on the simulated servers and on real ones.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "rotation/bed.rs"]
mod bed;
#[path = "rotation/under_load.rs"]
mod under_load;

use std::time::Duration;

use jiff::SignedDuration;
use kube::Client;
use test_cluster::{Rights, TestCluster, User};

use self::bed::{Bed, DUE, Pause, at_time, bounded, hooked};

test_cluster::component_tests! {
    /// Roles of the Go programs do not let the leader write the Secret: that is said, and nothing else.
    #[each_role]
    async fn a_token_that_is_due_is_renewed_and_put_into_the_secret(cluster: TestCluster) {
        let bed = Bed::bare(&cluster, 600).await;
        let running = bed.start(DUE);
        bed.until("it is told", async || !bed.told().is_empty()).await;
        if cluster.rights() == Rights::Existing {
            let told = bed.told();
            assert!(told[0].starts_with("CredentialNotRotated ") && told[0].contains("grant get and update"), "{told:?}");
            assert_eq!(bed.token_of_copy().await, None);
            return;
        }
        let new = bed.token_of_copy().await.expect("there is a copy of the source");
        assert!(bed.is_good(&new).await && bed.is_good(&bed.token).await, "both, while copies are on their way");
        assert_eq!(bed.told().len(), 1, "{:?}", bed.told());
        assert!(bed.told()[0].starts_with("CredentialRotated Secret kube-system/harvester-cloud-provider-rotated"));
        assert_eq!(bed.tried(), [new]);
        running.abort();
    }

    /// Else the copy would have the old token, and be due for ever.
    async fn a_token_that_yaml_holds_otherwise_than_it_is_is_told_and_none_is_asked_for(cluster: TestCluster) {
        let mut bed = Bed::new(&cluster, 600).await;
        let escaped = format!("\"\\u{:04x}{}\"", u32::from(bed.token.as_bytes()[0]), &bed.token[1..]);
        bed.replace_source_text(&bed.source.replace(&format!("'{}'", bed.token), &escaped));
        let running = bed.start(DUE);
        bed.until("it is told", async || !bed.told().is_empty()).await;
        assert!(bed.told()[0].contains("write it on one line"), "{:?}", bed.told());
        assert!(!bed.asked_for_tokens());
        assert_eq!(bed.token_of_copy().await, None);
        running.abort();
    }

    async fn a_token_that_is_not_due_stays(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        let running = bed.start(SignedDuration::from_secs(300));
        cluster.settle().await;
        assert_eq!((bed.token_of_copy().await, bed.told().len()), (None, 0));
        assert!(!bed.asked_for_tokens());
        running.abort();
    }

    /// The token of `generate` without `--rotate`, of Rancher, of a person's own making.
    async fn nothing_is_asked_of_any_cluster_for_a_token_that_was_not_made_to_rotate(cluster: TestCluster) {
        let mut bed = Bed::new(&cluster, 600).await;
        for token in ["kubeconfig-user-abc:secret".to_owned(), bounded(&cluster, 600, None).await] {
            bed.replace_source(&token);
            cluster.settle().await;
            cluster.guest.forget_requests();
            cluster.harvester.forget_requests();
            let running = bed.start(SignedDuration::from_secs(5_000));
            cluster.settle().await;
            let asked = [&cluster.guest, &cluster.harvester].map(|side| side.work_of(User::CloudControllerManager));
            assert!(asked.iter().all(Vec::is_empty), "{asked:?}");
            assert_eq!(bed.told().len(), 0, "{:?}", bed.told());
            running.abort();
        }
    }

    /// The time that counts is that of the server which gives tokens.
    async fn a_clock_that_is_ten_minutes_off_renews_neither_too_early_nor_too_late(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        let running = bed.start_with(SignedDuration::from_secs(300), SignedDuration::from_mins(10), |client| client);
        cluster.settle().await;
        assert!(!bed.asked_for_tokens(), "the clock here is ahead");
        running.abort();
        let running = bed.start_with(DUE, SignedDuration::from_mins(-10), |client| client);
        bed.until("it is renewed", async || bed.token_of_copy().await.is_some()).await;
        running.abort();
    }

    async fn a_leader_that_loses_against_another_keeps_the_token_of_that_one(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        let other = bounded(&cluster, 900, Some("blue")).await;
        let (copy, driver) = (bed.copy_with(&other), cluster.guest.client(User::Driver));
        let running = bed.start_with(DUE, SignedDuration::ZERO, |client: Client| {
            hooked(client, Pause::never(), move |method, path| {
                let (copy, driver) = (copy.clone(), driver.clone());
                async move {
                    if method == "POST" && path.ends_with("/token") {
                        bed::put(&driver, Some(&copy)).await;
                    }
                }
            })
        });
        bed.until("the other's is there", async || bed.token_of_copy().await.is_some()).await;
        cluster.settle().await;
        assert_eq!(bed.token_of_copy().await, Some(other));
        assert_eq!(bed.told().len(), 0, "a conflict is no failure: {:?}", bed.told());
        running.abort();
    }

    /// It ends between the token and the write; whoever leads next begins anew.
    async fn a_leader_that_dies_before_it_writes_leaves_everything_as_it_was(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        let pause = Pause::at("PUT");
        let running = bed.start_on(hooked(bed.guest(), pause.clone(), |_, _| async {}), DUE);
        bed.until("it is about to write", async || pause.is_reached()).await;
        running.abort();
        assert_eq!(bed.token_of_copy().await, None);
        assert!(bed.is_good(&bed.token).await);
        let running = bed.start(DUE);
        bed.until("the next leader has renewed it", async || bed.token_of_copy().await.is_some()).await;
        assert!(bed.is_good(&bed.token_of_copy().await.unwrap()).await);
        running.abort();
    }

    async fn a_secret_that_a_person_empties_is_filled_again_when_the_parts_see_it(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        let running = bed.start(DUE);
        bed.until("it is renewed", async || bed.token_of_copy().await.is_some()).await;
        bed::put(&cluster.guest.client(User::Driver), None).await;
        assert_eq!(bed.token_of_copy().await, None);
        bed.wake();
        bed.until("it is renewed again", async || bed.token_of_copy().await.is_some()).await;
        running.abort();
    }

    /// Whoever may write the Secret makes a token that says what he likes, and no signature.
    async fn a_token_that_harvester_refuses_is_renewed_whatever_it_says_of_its_end(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        let forged = bed.forged();
        bed::put(&cluster.guest.client(User::Driver), Some(&bed.copy_with(&forged))).await;
        assert_eq!(bed.token_of_copy().await, Some(forged.clone()));
        let running = bed.start(DUE);
        bed.until("it is renewed", async || bed.token_of_copy().await != Some(forged.clone())).await;
        assert!(bed.is_good(&bed.token_of_copy().await.unwrap()).await);
        running.abort();
    }

    /// A person gives another token: nobody overwrites the choice, and nothing is due.
    async fn a_source_that_a_person_changes_is_not_renewed_before_it_is_due_itself(cluster: TestCluster) {
        let mut bed = Bed::new(&cluster, 600).await;
        let running = bed.start(DUE);
        bed.until("it is renewed", async || bed.token_of_copy().await.is_some()).await;
        let fresh = bounded(&cluster, 6_000, Some("blue")).await;
        bed.replace_source(&fresh);
        cluster.settle().await;
        assert_eq!(bed.token_of_copy().await, None, "what is there is of the former source");
        assert_eq!(bed.told().len(), 1, "{:?}", bed.told());
        running.abort();
    }

    #[simulated_only("waits for half a minute")]
    async fn a_right_that_is_missing_is_told_once_and_back_within_a_minute_of_the_grant(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 600).await;
        bed.take_right().await;
        let running = bed.start(DUE);
        cluster.advance(Duration::from_secs(300)).await;
        let told = bed.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("grant create on serviceaccounts/token"), "{told:?}");
        bed.give_right().await;
        cluster.advance(Duration::from_secs(60)).await;
        assert!(bed.token_of_copy().await.is_some());
        assert!(bed.told()[1].starts_with("CredentialRotated "), "{:?}", bed.told());
        running.abort();
    }

    /// `--service-account-max-token-expiration` of an API server.
    #[simulated_only("waits for the life of a token")]
    async fn a_server_that_gives_a_shorter_life_than_asked_is_asked_again_by_that_life(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 3_000).await;
        let (server, clock) = (cluster.harvester.client(User::CloudControllerManager), bed.clock());
        let running = bed.start_between(bed.guest(), bed::stingy(at_time(server, clock, SignedDuration::ZERO)), clock);
        cluster.advance(Duration::from_secs(2_010)).await;
        let first = bed.token_of_copy().await.expect("two thirds of 3000 s are over");
        // kubelet brings what the leader wrote itself: it ends before the source's token, and is not due
        bed.wake();
        cluster.advance(Duration::from_secs(380)).await;
        assert_eq!(bed.token_of_copy().await, Some(first.clone()));
        cluster.advance(Duration::from_secs(40)).await;
        let second = bed.token_of_copy().await.unwrap();
        assert_ne!(second, first, "two thirds of 600 s are over");
        running.abort();
    }

    #[simulated_only("a server that answers nothing for minutes")]
    async fn a_harvester_that_is_away_is_asked_less_and_less_and_ends_nothing(cluster: TestCluster) {
        let bed = Bed::new(&cluster, 6_000).await;
        let gone = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nobody is there"))
        });
        let clock = program::Clock::starting_at(cluster.start() + SignedDuration::from_secs(4_500));
        let running = bed.start_between(bed.guest(), Client::new(gone, "default"), clock);
        cluster.advance(Duration::from_secs(1_200)).await;
        let told = bed.told();
        assert!(told.len() == 1 && told[0].contains("nobody is there"), "told once: {told:?}");
        let reads = cluster.guest.work_of(User::CloudControllerManager).len();
        assert!((5..=12).contains(&reads), "5, 10, 20, … 300 s: {reads}");
        assert!(!running.is_finished());
        running.abort();
    }
}
