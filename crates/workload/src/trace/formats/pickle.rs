//! Reads the subset of Python's pickles that NumPy writes for an array with one dictionary of numbers and lists.
//!
//! Only the opcodes of such files are supported, and of classes only those of NumPy. No code is ever executed. Python's
//! `pickletools` documents the opcodes.

/// A value of plain Python.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Int(i64),
    Text(String),
    List(Vec<Value>),
    /// In the order of the file.
    Dict(Vec<(Value, Value)>),
}

impl Value {
    /// The value of a text key, if this is a dictionary that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Dict(entries) = self else { return None };
        entries.iter().find(|(name, _)| matches!(name, Value::Text(name) if name == key)).map(|(_, value)| value)
    }
}

/// Unpacks the only object of a pickled array.
///
/// # Errors
/// The first difference from such a file.
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
            _ => Err("the pickled array does not have exactly one object".to_owned()),
        },
        _ => Err("unknown state of the pickled array".to_owned()),
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
/// The maximum depth of objects. Deeper ones are damaged, or contain themselves.
const DEEPEST: usize = 16;

#[derive(Clone, Copy)]
enum Item<'a> {
    /// `None`, a boolean or a class. They cannot be part of a dictionary of numbers.
    Other,
    Int(i64),
    Text(&'a str),
    /// The index of an object. Lists and dictionaries may grow after they were stored in the memo.
    Object(usize),
}

enum Object<'a> {
    List(Vec<Item<'a>>),
    Dict(Vec<(Item<'a>, Item<'a>)>),
    Tuple(Vec<Item<'a>>),
    /// An instance of a class, with its state.
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
    // Long: one case for each opcode.
    /// Executes one opcode. Returns false after the last one.
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
            other => return Err(format!("unsupported opcode {other:#04x} in the pickle")),
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
        self.stack.pop().ok_or_else(|| "the stack of the pickle is empty".to_owned())
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
        let start = self.stack.len().checked_sub(size).ok_or("the stack of the pickle has too few values")?;
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
            _ => Err("the pickle changes a value that is not an object".to_owned()),
        }
    }

    fn append(&mut self, items: &[Item<'a>]) -> Result<(), String> {
        let Object::List(list) = self.top()? else {
            return Err("the pickle appends to a value that is not a list".to_owned());
        };
        list.extend(items);
        Ok(())
    }

    fn set(&mut self, items: &[Item<'a>]) -> Result<(), String> {
        let Object::Dict(dict) = self.top()? else {
            return Err("the pickle sets a key of a value that is not a dictionary".to_owned());
        };
        let (pairs, odd) = items.as_chunks();
        if !odd.is_empty() {
            return Err("the pickle sets a key without a value".to_owned());
        }
        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    /// Stores the top of the stack in the memo. Slots are numbered in the order of their first use.
    fn remember(&mut self, slot: usize) -> Result<(), String> {
        let item = *self.stack.last().ok_or("the stack of the pickle is empty")?;
        // Protocol 2 numbers slots from 0, or from 1 if written by Python 2.
        if slot > self.memo.len() + 1 {
            return Err("the pickle skips a slot of its memo".to_owned());
        }
        self.memo.resize(self.memo.len().max(slot + 1), Item::Other);
        self.memo[slot] = item;
        Ok(())
    }

    fn recall(&mut self, slot: usize) -> Result<(), String> {
        self.stack.push(*self.memo.get(slot).ok_or("the pickle reads an empty slot of its memo")?);
        Ok(())
    }

    fn global(&mut self) -> Result<(), String> {
        let mut ends = self.rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let end = ends.nth(1).ok_or("the pickle ends too early")?;
        let name = std::str::from_utf8(&self.rest[..end]).unwrap_or_default();
        if !GLOBALS.contains(&name) {
            return Err(format!("the pickle uses `{}`, which is not allowed", name.replace('\n', ".")));
        }
        self.rest = &self.rest[end + 1..];
        self.stack.push(Item::Other);
        Ok(())
    }

    fn build(&mut self) -> Result<(), String> {
        let state = self.pop()?;
        let Object::Built(built) = self.top()? else {
            return Err("the pickle sets the state of a value that has none".to_owned());
        };
        *built = Some(state);
        Ok(())
    }

    fn value(&self, item: Item, depth: usize) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err("the pickled object is nested too deep".to_owned());
        }
        let deeper = |item: &Item| self.value(*item, depth + 1);
        match item {
            Item::Int(number) => Ok(Value::Int(number)),
            Item::Text(text) => Ok(Value::Text(text.to_owned())),
            Item::Other => {
                Err("the pickled object has other values than numbers, texts, lists and dictionaries".to_owned())
            }
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

    /// A pickled array whose content is pushed by these opcodes.
    fn array_of(content: &[u8]) -> Vec<u8> {
        let class =
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85U\x01b\x87Rq\x02";
        let dtype = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb";
        [class.as_slice(), b"(K\x01)", dtype, b"\x89]", content, b"atb."].concat()
    }

    #[test]
    fn the_object_of_an_array_is_unpacked() {
        // {0: {'a': [1, 300]}, 1: {'a': []}}; the text is stored in the memo and read again.
        let bytes = array_of(b"}q\x03(K\x00}(U\x01aq\x04](K\x01M\x2c\x01euK\x01}h\x04]su");
        let ints = |numbers: &[i64]| Value::List(numbers.iter().map(|number| Value::Int(*number)).collect());
        let inner = |list| Value::Dict(vec![(Value::Text("a".to_owned()), list)]);
        let expected = Value::Dict(vec![(Value::Int(0), inner(ints(&[1, 300]))), (Value::Int(1), inner(ints(&[])))]);
        assert_eq!(array_object(&bytes), Ok(expected));
    }

    #[test]
    fn other_opcodes_classes_and_damaged_pickles_are_refused() {
        let refused = |bytes: &[u8]| array_object(bytes).unwrap_err();
        assert!(refused(b"\x80\x02cos\nsystem\n.").contains("uses `os.system`"));
        assert!(refused(&array_of(b"\x93")).contains("opcode 0x93"));
        assert!(refused(&array_of(b"}(K\x01u")).contains("key without a value"));
        assert!(refused(&array_of(b"]q\x03h\x03a")).contains("too deep"), "a list that contains itself");
        assert!(refused(b"\x80\x02K").contains("ends too early"));
        for end in 0..array_of(b"}").len() {
            assert!(array_object(&array_of(b"}")[..end]).is_err());
        }
    }
}
