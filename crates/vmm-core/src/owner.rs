//! Names of those who hold memory, interned once so that the hot path carries a number.

use std::collections::HashMap;

/// Who a lease is accounted to. Made by [`crate::Pool::owner`]; valid in that pool alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub(crate) u32);

impl Owner {
    /// Nobody in particular.
    pub const NONE: Self = Self(0);
}

#[derive(Debug)]
pub(crate) struct Owners {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self { names: vec![String::from("(unnamed)")], numbers: HashMap::new() }
    }

    pub(crate) fn intern(&mut self, name: &str) -> Owner {
        if let Some(number) = self.numbers.get(name) {
            return Owner(*number);
        }
        let number = u32::try_from(self.names.len()).expect("fewer than 2^32 owners");
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Owner(number)
    }

    /// The name of a number; owners of other pools may have none here.
    pub(crate) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("(unknown)", String::as_str)
    }
}
