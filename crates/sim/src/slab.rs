//! Storage for short-lived values. The slot freed last is reused first, because it is likely to be in the processor's
//! cache.

use std::marker::PhantomData;

pub struct Slab<T> {
    things: Vec<Option<T>>,
    vacant: Vec<u32>,
}

/// The slot of a value, until the value is taken.
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
        let thing = self.things[place as usize].take().expect("a value stays in its slot until it is taken");
        self.vacant.push(place);
        thing
    }
}
