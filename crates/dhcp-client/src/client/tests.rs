use dhcproto::v4::{DhcpOption, Message, Opcode, OptionCode};
use dhcproto::{Decodable, Encodable};
use rstest::rstest;

use super::*;

const MAC: Mac = Mac([0, 0, 0x6c, 1, 2, 3]);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

fn client() -> Client {
    Client::new(Config::new(MAC, 1))
}

#[expect(clippy::disallowed_methods, reason = "a point in time to count from")]
fn start() -> Instant {
    Instant::now()
}

fn after(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

/// The packet that the commands send, and its destination.
fn sent(commands: &[Command]) -> (Message, Destination) {
    let sends = commands.iter().filter_map(|command| match command {
        Command::Send { packet, to } => Some((Message::from_bytes(packet).unwrap(), *to)),
        _ => None,
    });
    let [sent] = &*sends.collect::<Vec<_>>() else { panic!("{commands:?}") };
    sent.clone()
}

/// An answer of the server; `change` makes it another.
fn answer(to: &Message, message_type: MessageType, change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut answer = Message::default();
    answer.set_opcode(Opcode::BootReply).set_xid(to.xid()).set_chaddr(to.chaddr()).set_yiaddr(ADDRESS);
    answer.opts_mut().insert(DhcpOption::MessageType(message_type));
    answer.opts_mut().insert(DhcpOption::ServerIdentifier(SERVER));
    answer.opts_mut().insert(DhcpOption::AddressLeaseTime(800));
    change(&mut answer);
    answer.to_vec().unwrap()
}

/// A client that was given a lease at `now` by an acknowledgement that `change` made.
fn bound(now: Instant, change: impl FnOnce(&mut Message)) -> (Client, Vec<Command>) {
    let mut client = client();
    let (discover, _) = sent(&client.on(Event::Start, now));
    let offer = answer(&discover, MessageType::Offer, |_| ());
    let (request, _) = sent(&client.on(Event::Packet(&offer), now));
    let ack = answer(&request, MessageType::Ack, change);
    let commands = client.on(Event::Packet(&ack), now);
    (client, commands)
}

fn option(message: &Message, code: OptionCode) -> Option<DhcpOption> {
    message.opts().get(code).cloned()
}

#[test]
fn a_request_for_an_offer_names_address_and_server_within_the_offers_transaction() {
    let (mut client, now) = (client(), start());
    let (discover, to) = sent(&client.on(Event::Start, now));
    assert_eq!(to, Destination::Broadcast);
    let offer = answer(&discover, MessageType::Offer, |_| ());
    let (request, to) = sent(&client.on(Event::Packet(&offer), now));
    assert_eq!((request.xid(), to), (discover.xid(), Destination::Broadcast));
    assert_eq!(
        option(&request, OptionCode::RequestedIpAddress),
        Some(DhcpOption::RequestedIpAddress(ADDRESS))
    );
    assert_eq!(option(&request, OptionCode::ServerIdentifier), Some(DhcpOption::ServerIdentifier(SERVER)));
    assert_eq!(request.ciaddr(), Ipv4Addr::UNSPECIFIED);
}

#[test]
fn a_former_address_is_asked_for_without_naming_a_server() {
    let mut client = Client::new(Config { requested: Some(ADDRESS), ..Config::new(MAC, 1) });
    let (request, to) = sent(&client.on(Event::Start, start()));
    assert_eq!(request.opts().msg_type(), Some(MessageType::Request));
    assert_eq!(
        option(&request, OptionCode::RequestedIpAddress),
        Some(DhcpOption::RequestedIpAddress(ADDRESS))
    );
    assert_eq!((option(&request, OptionCode::ServerIdentifier), to), (None, Destination::Broadcast));
}

#[test]
fn renewals_go_to_the_server_and_rebindings_to_all_servers() {
    let now = start();
    let (mut client, _) = bound(now, |_| ());
    for (second, to) in [(400, Destination::Server(SERVER)), (700, Destination::Broadcast)] {
        let (request, destination) = sent(&client.on(Event::Alarm, after(now, second)));
        assert_eq!((request.ciaddr(), destination), (ADDRESS, to));
        assert_eq!(option(&request, OptionCode::RequestedIpAddress), None);
        assert_eq!(option(&request, OptionCode::ServerIdentifier), None);
    }
}

#[test]
fn a_renewal_says_so_and_moves_the_end() {
    let now = start();
    let (mut client, _) = bound(now, |_| ());
    let (request, _) = sent(&client.on(Event::Alarm, after(now, 400)));
    let ack = answer(&request, MessageType::Ack, |_| ());
    let commands = client.on(Event::Packet(&ack), after(now, 401));
    let [Command::AlarmAt(alarm), Command::Renewed(lease)] = &*commands else { panic!("{commands:?}") };
    assert_eq!((*alarm, lease.times.unwrap().end), (after(now, 801), after(now, 1201)));
}

#[rstest]
#[case::the_servers([Some(100), Some(200)], [100, 200])]
#[case::not_in_order([Some(300), Some(200)], [400, 700])]
#[case::after_the_end([Some(100), Some(900)], [400, 700])]
#[case::one_alone([Some(100), None], [400, 700])]
#[case::none([None, None], [400, 700])]
fn the_servers_t1_and_t2_count_where_they_are_in_order(
    #[case] named: [Option<u32>; 2],
    #[case] expected: [u64; 2],
) {
    let now = start();
    let (client, _) = bound(now, |ack| {
        for option in [named[0].map(DhcpOption::Renewal), named[1].map(DhcpOption::Rebinding)] {
            option.map(|option| ack.opts_mut().insert(option));
        }
    });
    let times = client.lease().unwrap().times.unwrap();
    assert_eq!([times.renew, times.rebind], expected.map(|second| after(now, second)));
}

#[test]
fn an_infinite_lease_is_never_renewed() {
    let now = start();
    let (mut client, commands) = bound(now, |ack| {
        ack.opts_mut().insert(DhcpOption::AddressLeaseTime(u32::MAX));
    });
    assert!(matches!(&*commands, [Command::Use(Lease { times: None, .. })]));
    assert_eq!(client.on(Event::Alarm, after(now, 10)), [], "the alarm of the request comes still");
}

#[rstest]
#[case::another_transaction(|ack: &mut Message| { ack.set_xid(1); })]
#[case::another_client(|ack: &mut Message| { ack.set_chaddr(&[9; 6]); })]
#[case::a_request(|ack: &mut Message| { ack.set_opcode(Opcode::BootRequest); })]
#[case::no_address(|ack: &mut Message| { ack.set_yiaddr(Ipv4Addr::UNSPECIFIED); })]
#[case::multicast(|ack: &mut Message| { ack.set_yiaddr([224, 0, 0, 1]); })]
#[case::no_server(|ack: &mut Message| { ack.opts_mut().remove(OptionCode::ServerIdentifier); })]
#[case::another_server(|ack: &mut Message| { ack.opts_mut().insert(DhcpOption::ServerIdentifier([192, 0, 2, 2].into())); })]
#[case::no_time(|ack: &mut Message| { ack.opts_mut().insert(DhcpOption::AddressLeaseTime(0)); })]
fn an_answer_that_is_not_the_servers_to_this_request_is_ignored(#[case] change: fn(&mut Message)) {
    let (client, commands) = bound(start(), change);
    assert_eq!((client.lease(), commands), (None, vec![]));
}

#[test]
fn packets_that_are_no_dhcp_or_too_long_are_ignored() {
    let (mut client, now) = (client(), start());
    let (discover, _) = sent(&client.on(Event::Start, now));
    let mut long = answer(&discover, MessageType::Offer, |_| ());
    long.resize(1501, 0);
    for packet in [&[][..], &[2; 20], &[0xff; 1500], &long] {
        assert_eq!(client.on(Event::Packet(packet), now), []);
    }
}

#[test]
fn a_refused_renewal_ends_the_use_at_once_and_asks_for_any_address() {
    let now = start();
    let (mut client, _) = bound(now, |_| ());
    let (request, _) = sent(&client.on(Event::Alarm, after(now, 400)));
    let nak = answer(&request, MessageType::Nak, |_| ());
    let commands = client.on(Event::Packet(&nak), after(now, 400));
    assert_eq!(commands[0], Command::Lost);
    let (discover, _) = sent(&commands);
    assert_eq!(discover.opts().msg_type(), Some(MessageType::Discover));
    assert_eq!(option(&discover, OptionCode::RequestedIpAddress), None);
}

#[test]
fn a_client_that_stops_gives_its_address_back_to_the_server() {
    let now = start();
    let (mut client, _) = bound(now, |_| ());
    let commands = client.on(Event::Stop, now);
    let (release, to) = sent(&commands);
    assert_eq!(release.opts().msg_type(), Some(MessageType::Release));
    assert_eq!((release.ciaddr(), to), (ADDRESS, Destination::Server(SERVER)));
    assert_eq!(commands[1], Command::Lost);
    assert_eq!(client.on(Event::Stop, now), [], "and has none to give back");
    assert_eq!(client.on(Event::Alarm, now), []);
}

#[test]
fn a_host_name_is_the_client_id_as_kube_vip_sends_it() {
    let config = Config { host_name: Some("web".to_owned()), ..Config::new(MAC, 1) };
    let (discover, _) = sent(&Client::new(config).on(Event::Start, start()));
    assert_eq!(option(&discover, OptionCode::Hostname), Some(DhcpOption::Hostname("web".to_owned())));
    assert_eq!(
        option(&discover, OptionCode::ClientIdentifier),
        Some(DhcpOption::ClientIdentifier(b"web".to_vec()))
    );
    let (discover, _) = sent(&client().on(Event::Start, start()));
    assert_eq!(option(&discover, OptionCode::ClientIdentifier), None);
}
