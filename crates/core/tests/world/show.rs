//! How transcripts show messages.

use super::*;

pub fn show_address(address: &Address) -> String {
    match address {
        Address::Master => "master".to_owned(),
        Address::GlobalMaster(number) => format!("global-{}", number.0),
        Address::ClusterMaster(number) => format!("cluster-{}", number.0),
        Address::JobManager(job) => format!("job-{job}"),
        Address::Node(node) => node.to_string(),
        Address::JobHost(host) => format!("host-{}", host.0),
        Address::Executor(node) => format!("executor-{node}"),
        Address::Client(_) => "client".to_owned(),
    }
}

pub fn show_message(message: &Message) -> String {
    let shown = match message {
        Message::ToMaster(body) => to_master(body),
        Message::ToJobManager(body) => to_job_manager(body),
        Message::ToNode(body) => to_node(body),
        Message::ToExecutor(body) => to_executor(body),
        _ => None,
    };
    shown.unwrap_or_else(|| format!("{message:?}"))
}

fn to_master(body: &ToMaster) -> Option<String> {
    Some(match body {
        ToMaster::Submit { spec, .. } => format!("submit {}", spec.name),
        ToMaster::Register(registration) => {
            format!("register with {} live", registration.live.len())
        }
        ToMaster::Report(report) => format!("report {} running", report.running),
        ToMaster::NodeFailed { node, suspects: 1 } => format!("{node} failed an attempt"),
        ToMaster::NodeFailed { node, suspects } => format!("one of {suspects} failed: {node}"),
        ToMaster::Freed { grants, .. } => format!("freed {}", list(grants)),
        ToMaster::Return { grants } => format!("return {}", list(grants)),
        ToMaster::Demand { asks, .. } => {
            let asks: Vec<String> = asks.iter().map(|ask| format!("{} x{}", ask.id, ask.wanted)).collect();
            format!(
                "demand {}",
                if asks.is_empty() { "as before, work as it is now".to_owned() } else { asks.join(" ") }
            )
        }
        ToMaster::JobEnded { outcome, .. } => format!("job ended: {outcome:?}"),
        ToMaster::Room { spare } => format!("room: {} CPU millis to spare", spare.cpu_millis()),
        ToMaster::Moved { to, left, queued, .. } => {
            format!("moved to {to}: {} CPU millis left there, {queued} wait here", left.cpu_millis())
        }
        _ => return None,
    })
}

fn to_job_manager(body: &ToJobManager) -> Option<String> {
    Some(match body {
        ToJobManager::Nodes { list, .. } => {
            let nodes = &list.nodes;
            let open = nodes.iter().filter(|node| node.is_open()).count();
            format!("nodes: {open} of {} open", nodes.len())
        }
        ToJobManager::Start { .. } => "begin".to_owned(),
        ToJobManager::Granted { grants } => {
            let grants: Vec<String> = grants.iter().map(|grant| format!("{} on {}", grant.id, grant.node)).collect();
            format!("granted {}", grants.join(" "))
        }
        ToJobManager::Started { attempt, .. } => format!("started {attempt}"),
        ToJobManager::Finished { attempt, ended, .. } => {
            format!("finished {attempt}: {}", ended.reason)
        }
        ToJobManager::NotPassed { attempt, why } => format!("refused {attempt}: {why}"),
        ToJobManager::NotTaken { attempt } => format!("not taken {attempt}"),
        ToJobManager::Live { attempts, .. } => format!("live: [{}]", list(attempts)),
        ToJobManager::Ready { probe } => format!("ready for {probe}"),
        _ => return None,
    })
}

fn to_node(body: &ToNode) -> Option<String> {
    Some(match body {
        ToNode::Welcome(welcome) => {
            format!("welcome in epoch {}, grants from {}", welcome.epoch.0, welcome.first_grant)
        }
        ToNode::Expire { before } => format!("tokens before generation {} are void", before.0),
        ToNode::Launch(launch) => format!("launch {} of task {}", launch.attempt, launch.task),
        ToNode::Probe(probe) => format!("probe {}", probe.id),
        ToNode::Cancel { probes } => format!("cancel {}", list(probes)),
        ToNode::Claim(claim) => format!("claim [{}]", list(&claim.attempts)),
        ToNode::Stop { attempt, reason, .. } => format!("stop {attempt}: {reason}"),
        ToNode::Acknowledge { attempt } => format!("acknowledge {attempt}"),
        ToNode::Executor(ExecutorReport::Started { attempt, .. }) => format!("started {attempt}"),
        ToNode::Executor(ExecutorReport::Finished { attempt, ended }) => {
            format!("finished {attempt}: {}", ended.reason)
        }
        ToNode::Executor(ExecutorReport::Executing { attempts }) => {
            format!("executing {}", attempts.len())
        }
        ToNode::Steer(steer) => format!("steer: queues up to {:?}", steer.longest_wait),
        ToNode::Move { to, room } => {
            format!("move to {to} what fits {} CPU millis", room.cpu_millis())
        }
        _ => return None,
    })
}

fn to_executor(body: &ToExecutor) -> Option<String> {
    Some(match body {
        ToExecutor::Launch(order) => format!("launch {}", order.attempt),
        ToExecutor::SetTimeout { attempt, timeout } => format!("timeout {attempt} {timeout:?}"),
        ToExecutor::Promote { attempt, .. } => format!("promote {attempt}"),
        ToExecutor::Yield { attempt } => format!("yield {attempt}"),
        ToExecutor::Resume { attempt } => format!("resume {attempt}"),
        ToExecutor::Signal { attempt, signal, .. } => format!("{signal:?} {attempt}"),
        ToExecutor::Acknowledge { attempt } => format!("acknowledge {attempt}"),
        ToExecutor::List { .. } => "list".to_owned(),
        _ => return None,
    })
}

fn list<T: ToString>(of: &[T]) -> String {
    of.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}
