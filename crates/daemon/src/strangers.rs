//! Connections that are not authenticated yet. Their number is limited.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use tokio::sync::oneshot;

/// Maximum number of connections that are not authenticated yet.
const MOST: usize = 256;

#[derive(Default)]
pub(crate) struct Strangers(VecDeque<(IpAddr, oneshot::Sender<()>)>);

impl Strangers {
    /// Adds a connection, which is a stranger until the receiver is dropped. It has to be closed when the receiver returns.
    pub fn add(&mut self, address: IpAddr) -> oneshot::Receiver<()> {
        self.0.retain(|(_, stranger)| !stranger.is_closed());
        if self.0.len() >= MOST {
            let networks: Vec<IpAddr> = self.0.iter().map(|(network, _)| *network).collect();
            self.0.remove(oldest_of_most(&networks));
        }
        let (stays, must_go) = oneshot::channel();
        self.0.push_back((network(address), stays));
        must_go
    }

    /// Closes the oldest connection, to free a file descriptor.
    pub fn drop_oldest(&mut self) {
        self.0.pop_front();
    }
}

/// At the limit, the connection that is closed is the oldest of those that are not authenticated and come from the network with
/// most of them. One machine cannot keep the others out, and a peer that answers immediately is authenticated before that.
fn oldest_of_most(networks: &[IpAddr]) -> usize {
    let count = |network: &IpAddr| networks.iter().filter(|other| *other == network).count();
    let most = networks.iter().map(count).max();
    networks.iter().position(|network| Some(count(network)) == most).unwrap_or(0)
}

/// A machine has a whole network of IPv6 addresses (/64).
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_with_most_strangers_loses_its_oldest() {
        let networks = ["10.0.0.1", "10.0.0.2", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8::3"];
        let networks: Vec<IpAddr> = networks.iter().map(|address| network(address.parse().unwrap())).collect();
        assert_eq!(oldest_of_most(&networks), 3, "all addresses of a /64 count as one");
        assert_eq!(oldest_of_most(&networks[..3]), 1);
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), networks[0]);
    }
}
