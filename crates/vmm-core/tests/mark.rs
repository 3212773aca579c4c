//! Marks: how far streams are, for those who hand pieces of a lease on.
#![allow(missing_docs)]

mod support;

use support::MIB;
use vmm_core::*;

/// The place of a stream that is gone is the next one's, whose work must not keep what marks of the
/// first were noted for.
#[test]
fn a_mark_that_has_passed_keeps_nothing() {
    let (device, pool) = support::quiet_pool(1 << 30, None);
    let own = device.make_stream();
    // As many as are forgotten before their places become vacant together.
    let marks: Vec<Mark> = (0..64)
        .map(|_| {
            let stream = device.make_stream();
            let mut mark = pool.mark(stream);
            for _ in 0..20 {
                device.launch(stream, 1, &[]).expect("work");
                mark = pool.mark_again(mark);
                device.advance(10);
                assert_eq!(pool.passed(&[mark]), Ok(vec![true]));
            }
            let mark = pool.mark_again(mark);
            pool.forget_stream(stream).expect("no capture");
            assert_eq!(pool.passed(&[mark]), Ok(vec![true]));
            device.destroy_stream(stream);
            mark
        })
        .collect();
    let lease = pool.allocate(4 * MIB, own, Owner::NONE).expect("memory");
    marks.iter().for_each(|mark| lease.used_until(*mark));
    let busy: Vec<Mark> = (0..64)
        .map(|_| {
            let stream = device.make_stream();
            device.launch(stream, 1_000_000_000, &[]).expect("work");
            pool.mark(stream)
        })
        .collect();
    lease.release(own);
    assert_eq!(pool.stats().retired_bytes, 0);
    pool.allocate(4 * MIB, own, Owner::NONE).expect("what was released").release(own);
    assert_eq!(pool.stats().device_waits, 0);
    assert_eq!(pool.passed(&busy), Ok(vec![false; 64]));
    device.finish_all();
    pool.validate();
}
