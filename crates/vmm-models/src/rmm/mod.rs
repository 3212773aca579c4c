//! The pool and the arena of RAPIDS RMM, written from the behaviour of its release 25.12.

pub mod arena;
pub mod pool;

pub(crate) use arena::Arena;
pub(crate) use pool::Pool;
