//! Connections between the server and the nodes, as the delivery assumption of `core::protocol` has them: in order while
//! they stand, and what is on its way is lost when they break.

use crate::settings::NetworkSettings;
use amalgam_core::vocabulary::{Duration, Instant};
use amalgam_workload::trace::Chance;

pub struct Network {
    settings: NetworkSettings,
    links: Vec<Link>,
    chance: Chance,
}

/// The connection of one node with the server.
#[derive(Clone, Default)]
pub struct Link {
    pub up: bool,
    /// Counts the connections: what was sent on an earlier one is not delivered.
    pub life: u32,
    /// When the last message of each direction arrives.
    last_arrival: [Instant; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToNode,
    ToServer,
}

impl Network {
    pub fn new(nodes: usize, settings: NetworkSettings, seed: u64) -> Network {
        Network { settings, links: vec![Link::default(); nodes], chance: Chance::new(seed, "network") }
    }

    pub fn set_delays(&mut self, settings: NetworkSettings) {
        self.settings = settings;
    }

    pub fn link(&self, node: usize) -> &Link {
        &self.links[node]
    }

    pub fn connect(&mut self, node: usize) {
        let link = &mut self.links[node];
        link.up = true;
        link.life += 1;
        link.last_arrival = [Instant::ZERO; 2];
    }

    /// When a message that leaves now arrives, and on which connection; `None` without one.
    pub fn send(&mut self, now: Instant, node: usize, direction: Direction) -> Option<(Instant, u32)> {
        let delay = self.delay();
        let link = &mut self.links[node];
        if !link.up {
            return None;
        }
        let last = &mut link.last_arrival[direction as usize];
        *last = (now + delay).max(*last);
        Some((*last, link.life))
    }

    /// Whether what was sent on this connection still arrives.
    pub fn delivers(&self, node: usize, life: u32) -> bool {
        let link = &self.links[node];
        link.up && link.life == life
    }

    fn delay(&mut self) -> Duration {
        let NetworkSettings { delay, jitter } = self.settings;
        match jitter.as_micros() {
            0 => delay,
            most => delay + Duration::from_micros(self.chance.below(most + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_connection_stay_in_order_whatever_their_delays() {
        let settings = NetworkSettings { delay: Duration::from_micros(500), jitter: Duration::from_millis(9) };
        let mut network = Network::new(1, settings, 7);
        assert_eq!(network.send(Instant(0), 0, Direction::ToNode), None);
        network.connect(0);
        let arrivals: Vec<Instant> =
            (0..200).filter_map(|at| network.send(Instant(at * 100), 0, Direction::ToNode)).map(|(at, _)| at).collect();
        assert!(arrivals.is_sorted() && arrivals.len() == 200);
        let overtaken = arrivals.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(overtaken > 20, "jitter beyond the gap between messages holds some back: {overtaken}");

        let (_, life) = network.send(Instant(20_000), 0, Direction::ToServer).unwrap();
        assert!(network.delivers(0, life));
        network.connect(0);
        assert!(!network.delivers(0, life));
    }
}
