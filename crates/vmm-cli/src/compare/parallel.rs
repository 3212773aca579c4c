//! Independent pieces of work on several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Does `work` for every item on so many threads, which take the items in their order. `done` is told
/// on the calling thread which item is finished. The results are in the order of the items.
///
/// # Panics
/// If `work` does.
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: NonZeroUsize,
    work: impl Fn(&T) -> R + Sync,
    mut done: impl FnMut(&T),
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs.get().min(items.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    // Nobody listens any more only if the calling thread panicked.
                    if sender.send((index, work(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (index, result) in receiver {
            done(&items[index]);
            results[index] = Some(result);
        }
    });
    results.into_iter().flatten().collect()
}

/// A thread for each core.
pub(super) fn all_cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_and_every_item_is_reported() {
        let items: Vec<u64> = (0..100).collect();
        for jobs in [1, 3, 200] {
            let mut seen = 0;
            let jobs = NonZeroUsize::new(jobs).expect("above zero");
            let squares = in_parallel(&items, jobs, |n| n * n, |n| seen += n);
            assert_eq!(squares, items.iter().map(|n| n * n).collect::<Vec<_>>());
            assert_eq!(seen, 99 * 50);
        }
        assert!(in_parallel(&[0; 0], all_cores(), |n: &i32| *n, |_| ()).is_empty());
    }
}
