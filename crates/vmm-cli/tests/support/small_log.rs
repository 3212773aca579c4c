//! A trace on two streams that needs less than 100 MiB, for devices with little memory or few addresses.

use std::fs;
use std::path::{Path, PathBuf};

/// How many tensors it has.
pub(crate) const TENSORS: u64 = 300;

/// Writes the trace into a folder.
pub(crate) fn write(folder: &Path) -> PathBuf {
    let mut log = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    let mut line = |at: u64, action: &str, id: u64, len: u64| {
        let (seconds, micros, stream) = (at / 1_000_000, at % 1_000_000, id % 2);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        log.push_str(&format!(
            "1,00:{minutes:02}:{seconds:02}.{micros:06},{action},0x{:x},{len},{stream}\n",
            (id + 1) << 28
        ));
    };
    let len = |id: u64| (1 << 20) * (1 + id * 7 % 13) + 512;
    for id in 0..TENSORS {
        line(id * 1_000, "allocate", id, len(id));
        if id >= 8 {
            line(id * 1_000 + 500, "free", id - 8, len(id - 8));
        }
    }
    let path = folder.join("two_streams.csv");
    fs::write(&path, log).expect("writable");
    path
}
