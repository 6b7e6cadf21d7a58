//! A client that leases an address from a server in memory, keeps it for two renewals, and gives it back.
//!
//! No packet leaves the process, and the hours pass in an instant: the caller moves the clock from alarm to alarm.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example prints, and stops where it cannot go on"
)]

use std::time::{Duration, Instant};

use dhcp_client::{Client, Command, Config, Event, Mac};
use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode};
use dhcproto::{Decodable, Encodable};

/// Offers and acknowledges 192.0.2.10 for an hour, to every client.
fn serve(packet: &[u8]) -> Option<Vec<u8>> {
    let request = Message::from_bytes(packet).ok()?;
    let message_type = match request.opts().msg_type()? {
        MessageType::Discover => MessageType::Offer,
        MessageType::Request => MessageType::Ack,
        _ => return None,
    };
    let mut answer = Message::default();
    answer.set_opcode(Opcode::BootReply).set_xid(request.xid()).set_chaddr(request.chaddr());
    answer.set_yiaddr([192, 0, 2, 10]);
    answer.opts_mut().insert(DhcpOption::MessageType(message_type));
    answer.opts_mut().insert(DhcpOption::ServerIdentifier([192, 0, 2, 1].into()));
    answer.opts_mut().insert(DhcpOption::AddressLeaseTime(3600));
    answer.to_vec().ok()
}

fn main() {
    let mut client = Client::new(Config::new(Mac([0, 0, 0x6c, 1, 2, 3]), 7));
    #[expect(clippy::disallowed_methods, reason = "the caller has the clock")]
    let start = Instant::now();
    let (mut now, mut alarm, mut answers) = (start, None, vec![]);
    let mut commands = client.on(Event::Start, now);
    loop {
        for command in std::mem::take(&mut commands) {
            match command {
                Command::Send { packet, .. } => answers.extend(serve(&packet)),
                Command::AlarmAt(at) => alarm = Some(at),
                Command::Use(lease) => println!("{:?}: the address is {}", now - start, lease.address),
                Command::Renewed(lease) => println!("{:?}: {} is extended", now - start, lease.address),
                Command::Lost => return println!("{:?}: the address is given back", now - start),
            }
        }
        commands = if let Some(answer) = answers.pop() {
            client.on(Event::Packet(&answer), now)
        } else if now - start < Duration::from_secs(3600) {
            now = alarm.take().unwrap();
            client.on(Event::Alarm, now)
        } else {
            client.on(Event::Stop, now)
        };
    }
}
