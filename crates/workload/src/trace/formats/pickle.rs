//! Python's pickles, as far as NumPy writes them for an array that holds one dictionary of numbers and lists.
//!
//! Only the opcodes that such a file needs are known, and of classes only NumPy's own; nothing is ever executed. See
//! Python's `pickletools` for the opcodes' meaning.

/// A value of plain Python.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Int(i64),
    Text(String),
    List(Vec<Value>),
    /// In the order in which it was written.
    Dict(Vec<(Value, Value)>),
}

impl Value {
    /// The entry of a dictionary under a text.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Dict(entries) = self else { return None };
        entries.iter().find(|(name, _)| matches!(name, Value::Text(name) if name == key)).map(|(_, value)| value)
    }
}

/// Unpacks the one object of a pickled array.
///
/// # Errors
/// The first thing that such a file would not hold.
pub(super) fn array_object(bytes: &[u8]) -> Result<Value, String> {
    let mut machine =
        Machine { rest: bytes, stack: Vec::new(), marks: Vec::new(), memo: Vec::new(), objects: Vec::new() };
    while machine.step()? {}
    let array = machine.pop()?;
    let state = match array {
        Item::Object(index) => &machine.objects[index],
        _ => return Err("the pickle is not an array".to_owned()),
    };
    let Object::Built(Some(Item::Object(state))) = *state else { return Err("the pickled array is empty".to_owned()) };
    match &machine.objects[state] {
        // Version, shape, type, order, content.
        Object::Tuple(parts) if parts.len() == 5 => match machine.value(parts[4], 0)? {
            Value::List(mut content) if content.len() == 1 => Ok(content.remove(0)),
            _ => Err("the pickled array does not hold one object".to_owned()),
        },
        _ => Err("the state of the pickled array is not known".to_owned()),
    }
}

/// The classes and functions that a pickled array names.
const GLOBALS: [&str; 5] = [
    "numpy.core.multiarray\n_reconstruct",
    "numpy._core.multiarray\n_reconstruct",
    "numpy\nndarray",
    "numpy\ndtype",
    "_codecs\nencode",
];
/// Deeper ones are damage, or an object that holds itself.
const DEEPEST: usize = 16;

#[derive(Clone, Copy)]
enum Item<'a> {
    /// `None`, a truth value or a class: nothing that a dictionary of numbers holds.
    Other,
    Int(i64),
    Text(&'a str),
    /// An index; lists and dictionaries go on growing after they were remembered.
    Object(usize),
}

enum Object<'a> {
    List(Vec<Item<'a>>),
    Dict(Vec<(Item<'a>, Item<'a>)>),
    Tuple(Vec<Item<'a>>),
    /// What a class made, and its state.
    Built(Option<Item<'a>>),
}

struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Item<'a>>,
    marks: Vec<usize>,
    memo: Vec<Item<'a>>,
    objects: Vec<Object<'a>>,
}

impl<'a> Machine<'a> {
    /// Executes one opcode; false after the last.
    fn step(&mut self) -> Result<bool, String> {
        match self.byte()? {
            0x80 => drop(self.byte()?),
            b'.' => return Ok(false),
            b'(' => self.marks.push(self.stack.len()),
            b'N' | 0x88 | 0x89 => self.stack.push(Item::Other),
            b'K' => {
                let number = self.byte()?;
                self.stack.push(Item::Int(number.into()));
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.stack.push(Item::Int(number.into()));
            }
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.stack.push(Item::Int(number.into()));
            }
            b'U' => {
                let length = usize::from(self.byte()?);
                self.text(length)?;
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                self.text(length)?;
            }
            b']' => self.make(Object::List(Vec::new())),
            b'}' => self.make(Object::Dict(Vec::new())),
            b')' => self.make(Object::Tuple(Vec::new())),
            size @ 0x85..=0x87 => self.tuple(usize::from(size - 0x84))?,
            b't' => {
                let items = self.since_mark()?;
                self.make(Object::Tuple(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(&items)?;
            }
            b'q' => {
                let slot = self.byte()?.into();
                self.remember(slot)?;
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?) as usize;
                self.remember(slot)?;
            }
            b'h' => {
                let slot = self.byte()?.into();
                self.recall(slot)?;
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?) as usize;
                self.recall(slot)?;
            }
            b'c' => self.global()?,
            b'R' => {
                let (_arguments, _callable) = (self.pop()?, self.pop()?);
                self.make(Object::Built(None));
            }
            b'b' => self.build()?,
            other => return Err(format!("the pickle uses the opcode {other:#04x}, which no array of numbers needs")),
        }
        Ok(true)
    }

    fn byte(&mut self) -> Result<u8, String> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], String> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or("the pickle ends too early")?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn pop(&mut self) -> Result<Item<'a>, String> {
        self.stack.pop().ok_or_else(|| "the pickle takes more than it made".to_owned())
    }

    fn text(&mut self, length: usize) -> Result<(), String> {
        let (text, rest) = self.rest.split_at_checked(length).ok_or("the pickle ends too early")?;
        self.rest = rest;
        self.stack.push(Item::Text(std::str::from_utf8(text).map_err(|_| "a pickled text is not UTF-8")?));
        Ok(())
    }

    fn make(&mut self, object: Object<'a>) {
        self.objects.push(object);
        self.stack.push(Item::Object(self.objects.len() - 1));
    }

    fn tuple(&mut self, size: usize) -> Result<(), String> {
        let start = self.stack.len().checked_sub(size).ok_or("the pickle takes more than it made")?;
        let items = self.stack.split_off(start);
        self.make(Object::Tuple(items));
        Ok(())
    }

    fn since_mark(&mut self) -> Result<Vec<Item<'a>>, String> {
        let start = self.marks.pop().filter(|start| *start <= self.stack.len()).ok_or("the pickle has no mark")?;
        Ok(self.stack.split_off(start))
    }

    fn top(&mut self) -> Result<&mut Object<'a>, String> {
        match self.stack.last() {
            Some(Item::Object(index)) => Ok(&mut self.objects[*index]),
            _ => Err("the pickle changes what is no object".to_owned()),
        }
    }

    fn append(&mut self, items: &[Item<'a>]) -> Result<(), String> {
        let Object::List(list) = self.top()? else { return Err("the pickle appends to what is no list".to_owned()) };
        list.extend(items);
        Ok(())
    }

    fn set(&mut self, items: &[Item<'a>]) -> Result<(), String> {
        let Object::Dict(dict) = self.top()? else { return Err("the pickle sets a key of what has none".to_owned()) };
        let (pairs, odd) = items.as_chunks();
        if !odd.is_empty() {
            return Err("the pickle sets a key without a value".to_owned());
        }
        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    /// Slots are numbered in the order in which they are first used.
    fn remember(&mut self, slot: usize) -> Result<(), String> {
        let item = *self.stack.last().ok_or("the pickle remembers nothing")?;
        // Protocol 2 numbers from 0 or, as written by Python 2, from 1.
        if slot > self.memo.len() + 1 {
            return Err("the pickle skips a place of its memory".to_owned());
        }
        self.memo.resize(self.memo.len().max(slot + 1), Item::Other);
        self.memo[slot] = item;
        Ok(())
    }

    fn recall(&mut self, slot: usize) -> Result<(), String> {
        self.stack.push(*self.memo.get(slot).ok_or("the pickle recalls what it never remembered")?);
        Ok(())
    }

    fn global(&mut self) -> Result<(), String> {
        let mut ends = self.rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let end = ends.nth(1).ok_or("the pickle ends too early")?;
        let name = std::str::from_utf8(&self.rest[..end]).unwrap_or_default();
        if !GLOBALS.contains(&name) {
            return Err(format!("the pickle names `{}`, which no array of numbers needs", name.replace('\n', ".")));
        }
        self.rest = &self.rest[end + 1..];
        self.stack.push(Item::Other);
        Ok(())
    }

    fn build(&mut self) -> Result<(), String> {
        let state = self.pop()?;
        let Object::Built(built) = self.top()? else {
            return Err("the pickle gives a state to what has none".to_owned());
        };
        *built = Some(state);
        Ok(())
    }

    fn value(&self, item: Item, depth: usize) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err("the pickled object is too deep".to_owned());
        }
        let deeper = |item: &Item| self.value(*item, depth + 1);
        match item {
            Item::Int(number) => Ok(Value::Int(number)),
            Item::Text(text) => Ok(Value::Text(text.to_owned())),
            Item::Other => Err("the pickled object holds more than numbers, texts, lists and dictionaries".to_owned()),
            Item::Object(index) => match &self.objects[index] {
                Object::List(items) | Object::Tuple(items) => {
                    Ok(Value::List(items.iter().map(deeper).collect::<Result<_, _>>()?))
                }
                Object::Dict(pairs) => {
                    let pair = |(key, value): &(Item, Item)| Ok::<_, String>((deeper(key)?, deeper(value)?));
                    Ok(Value::Dict(pairs.iter().map(pair).collect::<Result<_, _>>()?))
                }
                Object::Built(_) => self.value(Item::Other, depth),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An array around what the opcodes in the middle push.
    fn array_of(content: &[u8]) -> Vec<u8> {
        let class =
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85U\x01b\x87Rq\x02";
        let dtype = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb";
        [class.as_slice(), b"(K\x01)", dtype, b"\x89]", content, b"atb."].concat()
    }

    #[test]
    fn an_arrays_object_is_unpacked() {
        // {0: {'a': [1, 300]}, 1: {'a': []}}, the text remembered and recalled.
        let bytes = array_of(b"}q\x03(K\x00}(U\x01aq\x04](K\x01M\x2c\x01euK\x01}h\x04]su");
        let ints = |numbers: &[i64]| Value::List(numbers.iter().map(|number| Value::Int(*number)).collect());
        let inner = |list| Value::Dict(vec![(Value::Text("a".to_owned()), list)]);
        let expected = Value::Dict(vec![(Value::Int(0), inner(ints(&[1, 300]))), (Value::Int(1), inner(ints(&[])))]);
        assert_eq!(array_object(&bytes), Ok(expected));
    }

    #[test]
    fn what_no_array_needs_is_refused() {
        let refused = |bytes: &[u8]| array_object(bytes).unwrap_err();
        assert!(refused(b"\x80\x02cos\nsystem\n.").contains("names `os.system`"));
        assert!(refused(&array_of(b"\x93")).contains("opcode 0x93"));
        assert!(refused(&array_of(b"}(K\x01u")).contains("key without a value"));
        assert!(refused(&array_of(b"]q\x03h\x03a")).contains("too deep"), "a list that holds itself");
        assert!(refused(b"\x80\x02K").contains("ends too early"));
        for end in 0..array_of(b"}").len() {
            assert!(array_object(&array_of(b"}")[..end]).is_err());
        }
    }
}
