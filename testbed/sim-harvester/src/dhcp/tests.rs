//! The client, as kube-vip uses it, against the server.

use std::net::Ipv4Addr;
use std::time::Duration;

use dhcproto::{Decodable, Encodable, v4::Message};
use tokio::time::Instant;

use dhcp_client::{Client, Command, Config, Event, Mac};

use super::{message_type, server::Server};
use crate::settings::Dhcp;

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, 0, last)
}

fn settings(silent: bool) -> Dhcp {
    Dhcp { pool: (ip(10), ip(20)), lease_seconds: 800, silent }
}

const MAC: Mac = Mac([0, 0, 0x6c, 1, 2, 3]);

fn client(mac: Mac, requested: Option<Ipv4Addr>) -> Client {
    Client::new(Config { requested, ..Config::new(mac, 1) })
}

fn server(silent: bool) -> Server {
    Server::new(ip(254), settings(silent))
}

/// Runs client and server against each other until `until` seconds have passed. Returns the changes of the client's
/// address and the types of its packets, each with its second.
fn run(
    client: &mut Client,
    server: &mut Server,
    until: u64,
    mut meanwhile: impl FnMut(u64, &mut Server),
) -> Vec<(u64, String)> {
    let start = Instant::now();
    let (mut log, mut now, mut alarm) = (Vec::new(), start, None);
    let mut commands = client.on(Event::Start, now.into_std());
    loop {
        let mut answer = None;
        let second = (now - start).as_secs();
        for command in commands {
            match command {
                Command::Send { packet, .. } => {
                    let message = Message::from_bytes(&packet).unwrap();
                    log.push((second, format!("{:?}", message_type(&message).unwrap())));
                    answer = server.on(&message, now).map(|answer| answer.to_vec().unwrap());
                }
                Command::AlarmAt(at) => alarm = Some(Instant::from_std(at)),
                Command::Use(lease) => log.push((second, lease.address.to_string())),
                Command::Renewed(_) => {}
                Command::Lost => log.push((second, "lost".to_owned())),
            }
        }
        if let Some(answer) = answer {
            commands = client.on(Event::Packet(&answer), now.into_std());
            continue;
        }
        match alarm.take() {
            Some(at) if at <= start + Duration::from_secs(until) => now = at,
            _ => return log,
        }
        meanwhile((now - start).as_secs(), server);
        commands = client.on(Event::Alarm, now.into_std());
    }
}

fn texts(log: &[(u64, String)]) -> Vec<(u64, &str)> {
    log.iter().map(|(second, text)| (*second, text.as_str())).collect()
}

#[test]
fn a_lease_is_had_and_renewed_at_half_its_length() {
    let (mut client, mut server) = (client(MAC, None), server(false));
    let log = run(&mut client, &mut server, 900, |_, _| ());
    let expected = [(0, "Discover"), (0, "Request"), (0, "127.77.0.10"), (400, "Request"), (800, "Request")];
    assert_eq!(texts(&log), expected);
}

#[test]
fn an_unanswered_renewal_is_repeated_then_rebound_and_the_address_is_lost_with_the_lease() {
    let (mut client, mut server) = (client(MAC, None), server(false));
    let log = run(&mut client, &mut server, 820, |_, server| server.reconfigure(settings(true)));
    let first = texts(&log)[3];
    assert_eq!(first, (400, "Request"));
    let lost = log.iter().position(|(_, text)| text == "lost").expect("the lease ends");
    assert_eq!(log[lost].0, 800);
    assert_eq!(log[lost + 1], (800, "Request".to_owned()), "it asks for the address that it had");
    assert!(lost < 40, "not in ever smaller steps: {log:?}");
}

#[test]
fn a_server_that_answers_again_before_the_end_saves_the_lease() {
    let (mut client, mut server) = (client(MAC, None), server(false));
    let log = run(&mut client, &mut server, 1000, |second, server| {
        server.reconfigure(settings((400..700).contains(&second)));
    });
    assert!(log.iter().all(|(_, text)| text != "lost"), "{log:?}");
}

#[test]
fn after_a_restart_it_asks_for_the_address_that_it_had_and_takes_another_when_refused() {
    let mut server = server(false);
    let log = run(&mut client(MAC, Some(ip(17))), &mut server, 10, |_, _| ());
    assert_eq!(texts(&log), [(0, "Request"), (0, "127.77.0.17")]);
    let other = Mac([0, 0, 0x6c, 9, 9, 9]);
    let log = run(&mut client(other, Some(ip(17))), &mut server, 10, |_, _| ());
    assert_eq!(texts(&log), [(0, "Request"), (0, "Discover"), (0, "Request"), (0, "127.77.0.10")]);
}

#[test]
fn without_an_answer_it_asks_less_and_less_often() {
    let (mut client, mut server) = (client(MAC, None), server(true));
    let log = run(&mut client, &mut server, 215, |_, _| ());
    let seconds: Vec<_> = log.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [0, 10, 30, 60, 100, 150, 210]);
}
