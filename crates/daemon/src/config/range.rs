//! The values of the keys of queues.

/// The values of a key of queues.
pub(super) struct Range {
    pub least: f64,
    pub most: f64,
    pub usual: f64,
    /// The unit in which it is kept is one part in this many.
    pub parts: f64,
}

pub(super) const WEIGHT: Range = Range { least: 0.001, most: 1e6, usual: 1.0, parts: 1e3 };
pub(super) const GUARANTEED: Range = Range { least: 0.0, most: 1.0, usual: 0.0, parts: 1e6 };
pub(super) const SHARE: Range = Range { least: 0.0, most: 1.0, usual: 1.0, parts: 1e6 };

impl Range {
    pub fn scaled(&self, value: f64) -> Option<u32> {
        (self.least..=self.most).contains(&value).then(|| (value * self.parts).round() as u32)
    }

    pub fn remedy(&self) -> String {
        format!("write a number from {} to {}", self.least, self.most)
    }
}
