//! What to do about what was found.

use crate::fragmentation::Level;
use crate::inspection::{Inspection, OutOfMemory};
use crate::recorded::{Allocator, expands};
use crate::text::{bytes, percent};

/// Policies that are named in one sentence.
const NAMED: usize = 3;

/// A cause is worth advice where it takes at least this share of what is reserved.
const WORTH_A_LINE: f64 = 0.05;

/// Advice, most useful first. Never empty.
pub(crate) fn advise(inspection: &Inspection) -> Vec<String> {
    let mut advice = Vec::new();
    if !inspection.has_history {
        advice.push(about_recording(inspection));
        about_causes(inspection, &mut advice);
        return advice;
    }
    if let Some(oom) = inspection.ooms.first() {
        advice.push(about_failure(inspection, oom));
    } else {
        advice.extend(about_budgets(inspection));
    }
    about_causes(inspection, &mut advice);
    for growth in inspection.growths.iter().take(3) {
        advice.push(format!(
            "{} grew from {} to {} and never shrank: look for references that are kept, such as \
             losses in a list, or caches without a bound.",
            growth.name,
            bytes(growth.from_bytes),
            bytes(growth.to_bytes),
        ));
    }
    if advice.is_empty() {
        advice.push(match inspection.peak_reserved_bytes {
            None => "The log does not say what was reserved: see the policies for what the \
                     program needs."
                .to_owned(),
            Some(_) => {
                "Nothing to do: little is lost to fragmentation, and nothing grows.".to_owned()
            }
        });
    }
    advice
}

/// What a file without history cannot say, and how to get one with it.
fn about_recording(inspection: &Inspection) -> String {
    let how = match inspection.allocator {
        Allocator::Vmm => {
            "The pool's snapshot of itself holds one moment: who asked when, and what the program needs, \
             is not in it. Under PyTorch"
        }
        Allocator::PyTorch | Allocator::Unknown => {
            "The snapshot was taken with the recording off and holds one moment: who asked when, and \
             what the program needs, is not in it. To record that,"
        }
    };
    format!(
        "{how} call torch.cuda.memory._record_memory_history() before the work starts, and \
         torch.cuda.memory._dump_snapshot(\"run.pickle\") at its end."
    )
}

/// Whether anything would have served the request that failed.
fn about_failure(inspection: &Inspection, oom: &OutOfMemory) -> String {
    let capacity = oom.capacity();
    let needed = oom.needed();
    if inspection.allocator == Allocator::Unknown {
        return format!(
            "The program held {} when {} were asked for in vain: it needs {} at that moment.",
            bytes(oom.moment.held_bytes),
            bytes(oom.wanted.bytes),
            bytes(needed)
        );
    }
    if !oom.is_fragmentation() {
        let largest = oom.moment.owners.first().map_or_else(String::new, |owner| {
            format!(" The largest share, {}, is held by {}.", bytes(owner.bytes), owner.name)
        });
        let kept = match oom.kept_by_graphs_bytes {
            0 => String::new(),
            kept => format!(", {} kept by pools of captured graphs", bytes(kept)),
        };
        return format!(
            "No allocator avoids this failure: {} were in use{kept} and {} asked for, {} more than the \
             {} that the process could have. Hold less, or take a larger device.{largest}",
            bytes(oom.moment.held_bytes),
            bytes(oom.wanted.bytes),
            bytes(needed - capacity),
            bytes(capacity),
        );
    }
    let fitting: Vec<String> = inspection
        .by_budget()
        .into_iter()
        .filter(|&(_, budget)| budget <= capacity)
        .take(NAMED)
        .map(|(row, budget)| format!("{} ({})", row.policy, bytes(budget)))
        .collect();
    let start = format!(
        "The failure is fragmentation: {} would have sufficed, and the process could have {}.",
        bytes(needed),
        bytes(capacity)
    );
    match (fitting.is_empty(), inspection.policies.is_empty()) {
        (false, _) => format!("{start} These would have avoided it: {}.", fitting.join("; ")),
        (true, false) => format!("{start} None of the policies below runs the program in that."),
        (true, true) => start,
    }
}

/// The least memory that the program runs in, where it took clearly more.
fn about_budgets(inspection: &Inspection) -> Option<String> {
    let reserved = inspection.peak_reserved_bytes?;
    let known = inspection.by_budget();
    let &(_, least) = known.first()?;
    let named = known.iter().take(NAMED);
    let named = named.map(|(row, budget)| format!("in {} under {}", bytes(*budget), row.policy));
    (least + reserved / 10 < reserved).then(|| {
        let named = named.collect::<Vec<_>>().join("; ");
        format!("The program reserved {} and runs {named}.", bytes(reserved))
    })
}

fn about_causes(inspection: &Inspection, advice: &mut Vec<String>) {
    let moment = inspection.worst();
    let causes = &moment.causes;
    if causes.level() == Level::Low || inspection.allocator == Allocator::Unknown {
        return;
    }
    let mut found = causes.all();
    found.sort_by_key(|cause| std::cmp::Reverse(cause.bytes));
    for cause in found {
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = cause.bytes as f64 / causes.reserved as f64;
        if share < WORTH_A_LINE {
            continue;
        }
        let what = match (inspection.allocator, cause.key) {
            (Allocator::PyTorch, "too_small") if !expands(&inspection.settings) => {
                "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free memory of \
                 neighbours joins; vmm maps it to where it is needed"
            }
            (Allocator::PyTorch, "too_small") => {
                "expandable_segments is on and does not help here; vmm maps such memory to where it is \
                 needed"
            }
            (Allocator::Vmm, "too_small") => {
                "the pool moves idle frames when a request needs them: this costs device calls, \
                 not memory"
            }
            (_, "other_stream") => {
                "use fewer streams, or allocate on the stream that frees; vmm lets one stream have what \
                 another has released"
            }
            (_, "other_pool") if inspection.graph_pools > 0 => {
                "let captured graphs share one pool (torch.cuda.graph_pool_handle), and group \
                 small tensors"
            }
            (_, "other_pool") => {
                "requests up to 1 MiB and longer ones do not share memory: group small tensors, and \
                 empty the cache after a phase with many of them"
            }
            (_, "fenced") => {
                "memory that a second stream uses comes back late: let the first stream wait, or \
                 record fewer tensors on other streams"
            }
            (_, "rounding") if inspection.setting("roundup_power2_divisions").is_some() => {
                "roundup_power2_divisions rounds up: raise it, or leave it out"
            }
            (_, "rounding") if inspection.setting("max_split_size").is_some() => {
                "max_split_size keeps long blocks whole, whatever is asked for: raise it, or leave \
                 it out"
            }
            (_, "rounding") => "lengths just above a multiple of what is rounded to lose most",
            _ => continue,
        };
        advice.push(format!(
            "{} ({} of what was reserved) is {}: {what}.",
            bytes(cause.bytes),
            percent(share),
            cause.title
        ));
    }
}
