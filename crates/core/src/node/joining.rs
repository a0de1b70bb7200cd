//! How a node agent joins its cluster: it asks its executor what runs here, registers with the master, is welcomed, and
//! reports from then on.

use super::master_link::MOST_STARTS;
use super::yields::Yielding;
use super::{Attempt, NodeAgent, State};
use crate::protocol::{
    Executing, NodeReport, Registration, TaskSignal, TheExecutor, TheMaster, ToExecutor, ToMaster, Welcome,
};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, Duration, EndReason, Ended, HostId, Instant, Kinds, LaunchOrder};
use std::collections::BTreeSet;

impl NodeAgent {
    pub(super) fn on_executor_connected(&mut self, out: &mut Outbox) {
        self.executor.on_asked();
        self.files.on_list_asked();
        out.send(TheExecutor(self.node), ToExecutor::List { node: self.node });
    }

    /// The executor's list of attempts. Attempts that are missing from it were lost with an earlier executor.
    pub(super) fn on_executing(&mut self, now: Instant, executing: Vec<Executing>, out: &mut Outbox) {
        if !self.executor.awaits_list() {
            // If it was asked twice, the executor answers twice. The second answer lacks what was ordered after the
            // first.
            return;
        }
        // Nothing starts before the agent knows what runs.
        self.end_list(now, out);
        self.executor.on_listed();
        let there: BTreeSet<AttemptId> = executing.iter().map(|entry| entry.order.attempt).collect();
        let gone: Vec<AttemptId> = self
            .attempts
            .iter()
            .filter(|(id, attempt)| !there.contains(id) && attempt.is_at_executor())
            .map(|(id, _)| id)
            .collect();
        for attempt in gone {
            self.finish(now, attempt, Ended::without_run(EndReason::NodeLost), out);
        }
        for entry in executing {
            let attempt = entry.order.attempt;
            match self.attempts.get(&attempt).map(|known| &known.state) {
                None => self.adopt(now, entry),
                // Its `Started` was lost with the connection.
                Some(State::Starting) => {
                    self.started(now, attempt, entry.running_for, out);
                    self.say_again(attempt, &entry.order, entry.yields_for.is_some(), out);
                }
                Some(_) => self.say_again(attempt, &entry.order, entry.yields_for.is_some(), out),
            }
        }
        self.end_yields_of_other_rules(now, out);
        for claim in self.executor.take_claims() {
            self.on_claim(now, claim, out);
        }
        self.start_leases(now);
        self.register(now, out);
        self.fetch_again(now, out);
        self.start_what_fits(now, out);
    }

    /// Messages that were sent while the connection to the executor was down are lost.
    fn say_again(&self, id: AttemptId, known: &LaunchOrder, does_yield: bool, out: &mut Outbox) {
        let entry = &self.attempts[&id];
        if known.is_opportunistic() && !entry.is_opportunistic() {
            out.send(TheExecutor(self.node), ToExecutor::Promote { attempt: id, grant: entry.grant });
        }
        self.resend_timeout(id, known.template.timeout, out);
        self.resend_yield(id, does_yield, out);
        if let State::Stopping { reason, killed } = &entry.state {
            let signal = if *killed { TaskSignal::Kill } else { TaskSignal::Terminate };
            let reason = reason.clone();
            out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
        }
    }

    pub(super) fn adopt(&mut self, now: Instant, entry: Executing) {
        let Executing { order, running_for, yields_for, asked_to_end, .. } = entry;
        let yields_since = yields_for.map(|length| now.before(length));
        let since = yields_since.unwrap_or(now).before(running_for);
        let timeout_left = order.template.timeout.map(|timeout| Duration(timeout.0.saturating_sub(running_for.0)));
        let yielding = yields_since.map(|since| Yielding { since, before: Duration::ZERO, timeout_left, by: None });
        // When it was asked is not known: it gets its full grace again.
        let due = match asked_to_end {
            Some(_) => Some(now + self.settings.stop_grace),
            None if yielding.is_some() => None,
            None => order.template.timeout.map(|timeout| since + timeout),
        };
        let state = asked_to_end.map_or(State::Running, |reason| State::Stopping { reason, killed: false });
        let LaunchOrder { attempt, task, template, devices, grant, shared_gpu, expected, .. } = order;
        let entry =
            Attempt { grant, shared_gpu, expected, devices, yielding, ..Attempt::new(task, template, since, state) };
        self.room.adopt(&entry);
        self.attempts.adopt(now, attempt, entry, due);
        self.waits.on_change(now);
    }

    pub(super) fn register(&mut self, now: Instant, out: &mut Outbox) {
        if !self.executor.is_known() {
            return;
        }
        let Some(number) = self.master.register(now) else { return };
        let registration = Registration {
            number,
            node: self.node,
            name: self.settings.name.clone(),
            capacity: self.settings.capacity.clone(),
            attributes: self.settings.attributes.clone(),
            enforcement: self.settings.enforcement.clone(),
            live: self.live().collect(),
            program: self.settings.program.clone(),
        };
        out.send(TheMaster, ToMaster::Register(Box::new(registration)));
    }

    pub(super) fn on_welcome(&mut self, now: Instant, welcome: Welcome, out: &mut Outbox) {
        let Welcome { epoch, first_grant, kinds, heartbeat, pace, key, oldest, passes_on, .. } = welcome;
        self.tokens.on_issuer(key, oldest, epoch);
        if !self.room.has_kinds(&kinds) {
            self.on_kinds(kinds);
        }
        self.master.on_welcome(now, first_grant, heartbeat);
        self.on_passed_on(passes_on, out);
        self.resend_ends(HostId::SERVER, out);
        self.answer_early_launches(now, out);
        // A probe that arrived before may request kinds that were not known.
        self.start_what_fits(now, out);
        self.report(now, out);
        self.waits.forget(now, pace);
    }

    /// The indexes of custom kinds are known now: resolves capacity and devices again.
    pub(super) fn on_kinds(&mut self, kinds: Kinds) {
        let at_executor = self.attempts.iter().map(|(_, attempt)| attempt).filter(|attempt| attempt.is_at_executor());
        self.room.on_kinds(kinds, self.settings.capacity.clone(), at_executor);
    }

    pub(super) fn report(&mut self, now: Instant, out: &mut Outbox) {
        let said = self.said();
        if self.waits.is_open() || said.running + said.queued > 0 {
            // The report confirms the last report of waits, and an attempt that runs for longer than expected causes no
            // event.
            self.report_waits(now, true, out);
        }
        let late = self.attempts.late(now, self.queue.entries(), MOST_STARTS);
        let starts = self.master.take_starts();
        self.master.on_said(said);
        let report = NodeReport { starts, late, ..self.same_report(now) };
        out.send(TheMaster, ToMaster::Report(Box::new(report)));
        self.report_spare(now, out);
        self.offer_promotion(now, out);
    }
}
