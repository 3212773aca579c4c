//! A table whose places are used again.

use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(crate) struct Slots<T> {
    table: Vec<Option<T>>,
    unused: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { table: Vec::new(), unused: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn add(&mut self, value: T) -> u32 {
        if let Some(id) = self.unused.pop() {
            self.table[id as usize] = Some(value);
            return id;
        }
        self.table.push(Some(value));
        u32::try_from(self.table.len() - 1).expect("fewer than 2^32 entries")
    }

    pub(crate) fn remove(&mut self, id: u32) -> T {
        self.unused.push(id);
        self.table[id as usize].take().expect("an entry in use")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.table).filter_map(|(id, value)| Some((id, value.as_ref()?)))
    }

    /// Every id is below this.
    pub(crate) fn places(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.unused.len()
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;
    #[inline]
    fn index(&self, id: u32) -> &T {
        self.table[id as usize].as_ref().expect("an entry in use")
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.table[id as usize].as_mut().expect("an entry in use")
    }
}
