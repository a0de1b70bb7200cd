//! The network between processes: the delays, losses, breaks and repeats that `protocol.rs` allows.
//!
//! The transport sends a lost packet again, which delays it and every packet behind it. A message is lost only with its
//! connection. The messages that were delivered last on a connection may be delivered again on the next one.

use crate::settings::NetworkSettings;
use amalgam_core::hosting::Envelope;
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::{Duration, Instant};
use std::collections::VecDeque;

pub struct Network {
    settings: NetworkSettings,
    links: Vec<Link>,
    /// The last messages that each link delivered, by direction, if they may be repeated. Stored apart from the links,
    /// which are accessed much more often.
    delivered: Vec<[VecDeque<Envelope>; 2]>,
    chance: Chance,
}

/// The connection of two processes. Fits in one cache line.
#[derive(Clone, Default)]
#[repr(align(64))]
pub struct Link {
    /// Counts the connections: a message that was sent on an earlier one is not delivered.
    pub life: u32,
    /// Whether messages can be sent, by direction. The outer end sends only after the greeting has reached it.
    up: [bool; 2],
    /// When the last message of each direction arrives.
    last_arrival: [Instant; 2],
    in_flight: u32,
    /// Boxed because breaks are rare and links have to stay small.
    broken: Option<Box<Break>>,
}

/// Messages that were sent before the break may arrive until `arrives_until`.
#[derive(Clone, Copy)]
struct Break {
    at: Instant,
    arrives_until: [Instant; 2],
}

/// From the inside out: the server, the processes of job managers, the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Outward,
    Inward,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::Outward, Direction::Inward];
}

impl Link {
    pub fn is_connected(&self) -> bool {
        self.up[Direction::Outward as usize]
    }

    /// Whether both ends are connected and no message is in transit.
    pub fn is_quiet(&self) -> bool {
        self.up == [true; 2] && self.in_flight == 0
    }
}

impl Network {
    pub fn new(links: usize, settings: NetworkSettings, seed: u64) -> Network {
        let repeating = if settings.repeats > 0 { links } else { 0 };
        let delivered = vec![<[VecDeque<Envelope>; 2]>::default(); repeating];
        Network { settings, links: vec![Link::default(); links], delivered, chance: Chance::new(seed, "network") }
    }

    pub fn set_delays(&mut self, settings: NetworkSettings) {
        self.settings = settings;
    }

    pub fn link(&self, link: usize) -> &Link {
        &self.links[link]
    }

    /// Opens a new connection at its inner end.
    pub fn connect(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.life += 1;
        link.up[Direction::Outward as usize] = true;
        link.last_arrival = [Instant::ZERO; 2];
        link.in_flight = 0;
        link.broken = None;
    }

    /// Opens the connection at its outer end, too.
    pub fn greeted(&mut self, link: usize) {
        self.links[link].up[Direction::Inward as usize] = true;
    }

    /// Breaks the connection: no message sent from now on arrives, and some messages in transit are lost.
    pub fn break_off(&mut self, now: Instant, link: usize) {
        let reach = self.settings.delay.as_micros() + self.settings.jitter.as_micros() + 1;
        let arrives_until = Direction::BOTH.map(|_| now + Duration::from_micros(self.chance.below(reach)));
        let link = &mut self.links[link];
        if link.is_connected() {
            link.up = [false; 2];
            link.broken = Some(Box::new(Break { at: now, arrives_until }));
        }
    }

    /// The receiver of this direction has noticed that the connection broke: it accepts no more messages from it.
    pub fn give_up(&mut self, now: Instant, link: usize, direction: Direction) {
        if let Some(broken) = &mut self.links[link].broken {
            let until = &mut broken.arrives_until[direction as usize];
            *until = now.min(*until);
        }
    }

    /// One end has lost its memory: no messages of earlier connections are repeated.
    pub fn forget_delivered(&mut self, link: usize) {
        if let Some(delivered) = self.delivered.get_mut(link) {
            *delivered = Default::default();
        }
    }

    /// When a message that leaves now arrives, and on which connection. `None` while not connected.
    pub fn send(&mut self, now: Instant, link: usize, direction: Direction) -> Option<(Instant, u32)> {
        let delay = self.delay();
        let link = &mut self.links[link];
        if !link.up[direction as usize] {
            return None;
        }
        link.in_flight += 1;
        let last = &mut link.last_arrival[direction as usize];
        *last = (now + delay).max(*last);
        Some((*last, link.life))
    }

    /// Whether a message that was sent at `sent` on connection `life` arrives now.
    pub fn delivers(&mut self, now: Instant, link: usize, direction: Direction, life: u32, sent: Instant) -> bool {
        let link = &mut self.links[link];
        if link.life != life {
            return false;
        }
        link.in_flight -= 1;
        link.broken.as_ref().is_none_or(|broken| sent <= broken.at && now <= broken.arrives_until[direction as usize])
    }

    /// Remembers a delivered message if it may be repeated.
    pub fn delivered(&mut self, link: usize, direction: Direction, envelope: &Envelope) {
        if self.settings.repeats > 0
            && let Some(delivered) = self.delivered.get_mut(link)
        {
            let delivered = &mut delivered[direction as usize];
            delivered.push_back(envelope.clone());
            if delivered.len() > self.settings.repeats as usize {
                delivered.pop_front();
            }
        }
    }

    /// Removes and returns the messages that were delivered last and are delivered again on the new connection.
    pub fn repeats(&mut self, link: usize, direction: Direction) -> impl Iterator<Item = Envelope> {
        let delivered = self.delivered.get_mut(link).map(|delivered| &mut delivered[direction as usize]);
        let mut delivered = delivered.map(std::mem::take).unwrap_or_default();
        let forgotten = if delivered.is_empty() { 0 } else { self.chance.below(delivered.len() as u64 + 1) };
        delivered.drain(..forgotten as usize);
        delivered.into_iter()
    }

    fn delay(&mut self) -> Duration {
        let NetworkSettings { delay, jitter, loss, retransmission, .. } = self.settings;
        let mut total = delay;
        if jitter > Duration::ZERO {
            total += Duration::from_micros(self.chance.below(jitter.as_micros() + 1));
        }
        while loss > 0.0 && self.chance.unit() < loss {
            total += retransmission;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::{Address, Message, ToClient};
    use amalgam_core::vocabulary::ClientId;

    const SETTINGS: NetworkSettings = NetworkSettings {
        delay: Duration::from_micros(500),
        jitter: Duration::from_millis(9),
        loss: 0.0,
        retransmission: Duration::from_millis(200),
        repeats: 0,
    };

    fn connected(settings: NetworkSettings) -> Network {
        let mut network = Network::new(1, settings, 7);
        network.connect(0);
        network.greeted(0);
        network
    }

    fn envelope(number: u64) -> Envelope {
        let client = Address::Client(ClientId(number));
        Envelope { from: client, to: client, message: Message::ToClient(ToClient::Done) }
    }

    #[test]
    fn messages_of_a_connection_stay_in_order_with_any_delays() {
        assert_eq!(Network::new(1, SETTINGS, 7).send(Instant(0), 0, Direction::Outward), None);
        let mut network = connected(SETTINGS);
        let arrivals: Vec<Instant> = (0..200)
            .filter_map(|at| network.send(Instant(at * 100), 0, Direction::Outward))
            .map(|(at, _)| at)
            .collect();
        assert!(arrivals.is_sorted() && arrivals.len() == 200);
        let overtaken = arrivals.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(overtaken > 20, "jitter beyond the gap between messages holds some back: {overtaken}");
    }

    #[test]
    fn a_lost_packet_arrives_late_and_delays_the_packets_behind_it() {
        let mut network = connected(NetworkSettings { jitter: Duration::ZERO, loss: 0.1, ..SETTINGS });
        let send = |at: u64| network.send(Instant(at), 0, Direction::Outward).map(|(arrival, _)| arrival.0 - at);
        let travelled: Vec<u64> = (0..300).map(|number| number * 1_000).filter_map(send).collect();
        assert!(travelled.contains(&500) && travelled.contains(&200_500));
        assert!(travelled.contains(&199_500), "a packet that left 1 ms later waits for it");
    }

    #[test]
    fn messages_after_a_break_are_lost_and_messages_before_it_may_arrive() {
        let mut network = connected(SETTINGS);
        let (before, life) = network.send(Instant(0), 0, Direction::Inward).unwrap();
        network.break_off(Instant(100), 0);
        assert_eq!(network.send(Instant(200), 0, Direction::Inward), None);
        let late = Instant(100 + 10_000);
        assert!(!network.delivers(late, 0, Direction::Inward, life, Instant(0)), "{before:?}");
        network.connect(0);
        assert!(!network.delivers(before, 0, Direction::Inward, life, Instant(0)), "sent on an earlier connection");
        assert_eq!(network.send(late, 0, Direction::Inward), None, "the greeting has not reached the node yet");
    }

    #[test]
    fn the_last_messages_of_a_connection_may_be_repeated_in_order() {
        let mut network = connected(NetworkSettings { repeats: 3, ..SETTINGS });
        let clients =
            |envelopes: Vec<Envelope>| -> Vec<Address> { envelopes.into_iter().map(|envelope| envelope.to).collect() };
        let mut seen = Vec::new();
        for _ in 0..50 {
            (0..5).for_each(|number| network.delivered(0, Direction::Outward, &envelope(number)));
            let repeated = clients(network.repeats(0, Direction::Outward).collect());
            let last = clients((2..5).map(envelope).collect());
            assert!(last.ends_with(&repeated), "{repeated:?}");
            seen.push(repeated.len());
        }
        assert!((0..=3).all(|count| seen.contains(&count)));
        assert_eq!(network.repeats(0, Direction::Outward).count(), 0, "only once");
    }
}
