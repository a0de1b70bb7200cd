//! `isolation` and `isolation_at_least`: what the tasks of all jobs do not share with their nodes.

use super::{Mistake, mistake};
use amalgam_core::vocabulary::{Isolation, JobSpec};
use amalgam_workload::At;
use std::sync::{Arc, PoisonError, RwLock};

/// Which isolation tasks have whose stage does not say, and the least one that all tasks must have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IsolationKeys {
    pub usual: Option<Isolation>,
    pub at_least: Option<Isolation>,
}

impl IsolationKeys {
    /// Reads both keys.
    pub fn read(usual: Option<At<String>>, at_least: Option<At<String>>) -> Result<IsolationKeys, Mistake> {
        let parse = |key: &At<String>| {
            let known = Isolation::ALL.into_iter().find(|known| known.word() == key.value);
            known.ok_or_else(|| {
                let words = Isolation::ALL.map(Isolation::word).join("`, `");
                mistake(
                    key.at,
                    format!("unknown isolation `{}`", key.value.escape_debug()),
                    format!("write one of `{words}`"),
                )
            })
        };
        let least = at_least.as_ref().map(parse).transpose()?;
        let chosen = usual.as_ref().map(parse).transpose()?;
        if let (Some(key), Some(chosen), Some(least)) = (&usual, chosen, least)
            && chosen < least
        {
            let problem = format!("`isolation` is less than `isolation_at_least`, which is `{}`", least.word());
            return Err(mistake(key.at, problem, "remove `isolation`, or lower `isolation_at_least`"));
        }
        Ok(IsolationKeys { usual: chosen, at_least: least })
    }

    /// Decides the isolation of each stage that does not say.
    ///
    /// # Errors
    /// If a stage asks for less than is required: what is wrong, and a remedy.
    pub fn apply(self, job: &mut JobSpec) -> Result<(), (String, String)> {
        for stage in &mut job.stages {
            if let (Some(least), true) = (self.at_least, stage.program.container.is_some())
                && least > Isolation::None
            {
                let (name, least) = (&stage.name, least.word());
                let problem = format!(
                    "the stage {name} runs in a container, which its user configures, and this cluster requires at least the isolation `{least}`"
                );
                return Err((problem, "remove `container`".to_owned()));
            }
            let decided = stage.program.isolation.or(self.usual.max(self.at_least));
            if let (Some(wanted), Some(least)) = (decided, self.at_least)
                && wanted < least
            {
                let (name, wanted, least) = (&stage.name, wanted.word(), least.word());
                let problem = format!(
                    "the stage {name} has the isolation `{wanted}`, and this cluster requires at least `{least}`"
                );
                return Err((problem, format!("remove `isolation`, or use `{least}`")));
            }
            if decided != stage.program.isolation {
                Arc::make_mut(&mut stage.program).isolation = decided;
            }
        }
        Ok(())
    }
}

/// The keys in effect, which a reload changes.
#[derive(Default)]
pub struct IsolationRules(RwLock<IsolationKeys>);

impl IsolationRules {
    pub fn new(keys: IsolationKeys) -> IsolationRules {
        IsolationRules(RwLock::new(keys))
    }

    pub fn get(&self) -> IsolationKeys {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs that are submitted from now on get these.
    pub fn replace(&self, keys: IsolationKeys) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use amalgam_core::vocabulary::{Program, StageSpec};
    use std::path::Path;

    fn read(text: &str) -> Result<IsolationKeys, String> {
        let config = Config::parse(text, Path::new("server.toml"));
        config.map(|config| config.isolation).map_err(|error| error.to_string())
    }

    fn decided(text: &str, wanted: Option<Isolation>) -> Result<Option<Isolation>, String> {
        let program = Arc::new(Program { isolation: wanted, ..Program::default() });
        let stages = vec![StageSpec { name: "a".to_owned(), program, ..StageSpec::default() }];
        let mut job = JobSpec { stages, ..JobSpec::default() };
        read(text).unwrap().apply(&mut job).map_err(|(problem, remedy)| format!("{problem}; {remedy}"))?;
        Ok(job.stages[0].program.isolation)
    }

    #[test]
    fn a_default_applies_to_stages_that_do_not_say_and_a_floor_to_all() {
        use Isolation::{None as Nothing, PrivateTmp, Sandbox};
        assert_eq!(decided("", None), Ok(None));
        let usual = "isolation = 'private-tmp'";
        assert_eq!(decided(usual, None), Ok(Some(PrivateTmp)));
        assert_eq!(decided(usual, Some(Nothing)), Ok(Some(Nothing)), "it is a default");
        assert_eq!(decided(usual, Some(Sandbox)), Ok(Some(Sandbox)));
        let least = "isolation_at_least = 'private-tmp'";
        assert_eq!(decided(least, None), Ok(Some(PrivateTmp)));
        assert_eq!(decided(least, Some(Sandbox)), Ok(Some(Sandbox)));
        let refused = decided(least, Some(Nothing)).unwrap_err();
        assert!(
            refused.contains("the stage a has the isolation `none`") && refused.contains("use `private-tmp`"),
            "{refused}"
        );
        let both = format!("{least}\nisolation = 'sandbox'");
        assert_eq!(decided(&both, None), Ok(Some(Sandbox)));
        assert_eq!(decided(&both, Some(PrivateTmp)), Ok(Some(PrivateTmp)));
    }

    #[test]
    fn unknown_words_and_a_default_below_the_floor_are_refused() {
        let unknown = read("isolation = 'all'").unwrap_err();
        assert!(unknown.contains("unknown isolation `all`") && unknown.contains("`sandbox`"), "{unknown}");
        let below = read("isolation = 'none'\nisolation_at_least = 'sandbox'").unwrap_err();
        assert!(below.contains("`isolation` is less than `isolation_at_least`") && below.contains(":1:"), "{below}");
    }
}
