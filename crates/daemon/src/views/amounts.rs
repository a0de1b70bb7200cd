//! Amounts of resources by the names of their kinds.

use amalgam_core::vocabulary::resources::{WIDTH, is_in_thousandths};
use amalgam_core::vocabulary::{Kinds, ResourceTime, Resources, Totals};
use std::collections::BTreeMap;

/// Amounts by kind, in the units of the kinds. Kinds with the amount 0 are left out, except CPU and memory.
pub(super) fn named(resources: &Resources, kinds: &Kinds) -> BTreeMap<String, f64> {
    let mut totals = Totals::ZERO;
    totals.add(resources);
    named_totals(&totals, kinds)
}

pub(super) fn named_totals(totals: &Totals, kinds: &Kinds) -> BTreeMap<String, f64> {
    let amount = |kind: usize| {
        let units = totals.0[kind] as f64;
        if is_in_thousandths(kind) { units / 1e3 } else { units }
    };
    let present = (0..WIDTH).filter(|&kind| totals.0[kind] > 0 || kind <= 1);
    present.filter_map(|kind| Some((kinds.name(kind)?.to_owned(), amount(kind)))).collect()
}

/// Resource-seconds by kind, in the units of the kinds. Kinds with the amount 0 are left out.
pub(super) fn named_seconds(time: &ResourceTime, kinds: &Kinds) -> BTreeMap<String, f64> {
    let amount = |kind: usize| if is_in_thousandths(kind) { time.seconds(kind) / 1e3 } else { time.seconds(kind) };
    let present = (0..WIDTH).filter(|&kind| time.0[kind] > 0);
    present.filter_map(|kind| Some((kinds.name(kind)?.to_owned(), amount(kind)))).collect()
}

pub(super) fn add_amounts(sum: &mut BTreeMap<String, f64>, more: &BTreeMap<String, f64>) {
    more.iter().for_each(|(kind, amount)| *sum.entry(kind.clone()).or_default() += amount);
}
