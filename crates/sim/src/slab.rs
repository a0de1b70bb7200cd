//! Places for what comes and goes all the time; one that became free is used again first, while the processor has it at hand.

use std::marker::PhantomData;

pub struct Slab<T> {
    things: Vec<Option<T>>,
    vacant: Vec<u32>,
}

/// Where a thing lies, until it is taken.
pub struct Held<T>(u32, PhantomData<fn() -> T>);

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { things: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn put(&mut self, thing: T) -> Held<T> {
        let place = match self.vacant.pop() {
            Some(place) => {
                self.things[place as usize] = Some(thing);
                place
            }
            None => {
                self.things.push(Some(thing));
                (self.things.len() - 1) as u32
            }
        };
        Held(place, PhantomData)
    }

    pub fn take(&mut self, Held(place, _): Held<T>) -> T {
        let thing = self.things[place as usize].take().expect("a thing is there until it is taken");
        self.vacant.push(place);
        thing
    }
}
