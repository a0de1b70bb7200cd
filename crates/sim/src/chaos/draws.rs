//! Random draws that all parts of a scenario use.

use amalgam_core::vocabulary::Chance;

pub fn one_of<T: Copy>(chance: &mut Chance, choices: &[T]) -> T {
    choices[chance.below(choices.len() as u64) as usize]
}

pub fn is_one_in(many: u64, chance: &mut Chance) -> bool {
    chance.below(many) == 0
}
