//! tmp
use std::num::NonZeroUsize;
use vmm_models::*;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.to_string_lossy().ends_with(".gz"))
        .collect();
    names.sort();
    for p in names {
        let t = vmm_trace::read_file(&p, &mut |_| {}).unwrap();
        let d = t.main_device().unwrap();
        let rec = d.recorded_peak_reserved_bytes() as f64;
        let req = d.peak_requested_bytes() as f64;
        let st =
            RunSettings { curve_samples: NonZeroUsize::new(usize::MAX), ..RunSettings::default() };
        let start = std::time::Instant::now();
        let n = run(d, &Policy::Native(TorchOptions::default()), &st, &mut |_, _| {}).unwrap();
        let took = start.elapsed();
        // curve difference, time weighted
        let recorded: Vec<_> = d.recorded_reserved_curve().collect();
        let (mut k, mut diff, mut whole) = (0, 0.0, 0.0);
        for pair in n.curve.windows(2) {
            while k + 1 < recorded.len() && recorded[k + 1].0 <= pair[0].time_us {
                k += 1;
            }
            let dt = (pair[1].time_us - pair[0].time_us) as f64;
            diff += dt * (pair[0].reserved_bytes as f64 - recorded[k].1 as f64).abs();
            whole += dt * recorded[k].1 as f64;
        }
        let e = run(
            d,
            &Policy::Expandable(TorchOptions::default()),
            &RunSettings::default(),
            &mut |_, _| {},
        )
        .unwrap();
        println!(
            "{:24} start {:>9} model0 {:>9} native rec {:.3} model {:.3} ({:+.2}%) curve {:.2}%  exp {:.3}  {took:.2?}",
            t.name,
            d.start_reserved >> 20,
            n.curve[0].reserved_bytes >> 20,
            rec / req,
            n.peak_reserved_bytes as f64 / req,
            (n.peak_reserved_bytes as f64 / rec - 1.0) * 100.0,
            diff / whole * 100.0,
            e.peak_reserved_bytes as f64 / req
        );
    }
}
