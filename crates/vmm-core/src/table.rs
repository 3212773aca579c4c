//! A table whose places are used again.

use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Option<T>>,
    unused: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), unused: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(crate) fn add(&mut self, value: T) -> u32 {
        if let Some(id) = self.unused.pop() {
            self.entries[id as usize] = Some(value);
            return id;
        }
        self.entries.push(Some(value));
        u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 entries")
    }

    pub(crate) fn remove(&mut self, id: u32) -> T {
        self.unused.push(id);
        self.entries[id as usize].take().expect("an entry in use")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(id, value)| Some((id, value.as_ref()?)))
    }

    /// Every id is below this.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.unused.len()
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;
    #[inline]
    fn index(&self, id: u32) -> &T {
        self.entries[id as usize].as_ref().expect("an entry in use")
    }
}

impl<T> IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.entries[id as usize].as_mut().expect("an entry in use")
    }
}
