//! The figures of a report, as SVG.

mod at_once;
mod over_time;
mod scale;

use crate::address_map::AddressMap;
use crate::inspection::Inspection;
use crate::owners::Names;
use crate::policies::PolicyRow;
use crate::recorded::Recorded;
use crate::state::State;
use crate::svg::Svg;
use crate::timeline::Timeline;
use vmm_trace::DetailedTrace;

/// All that is drawn of one device.
#[derive(Debug)]
pub struct Picture {
    /// What is said about it.
    pub inspection: Inspection,
    /// Memory over time.
    pub timeline: Timeline,
    /// Addresses over time.
    pub map: AddressMap,
    /// What lay where when most was needed; without history at the end.
    pub state: State,
    /// The same when an allocation first failed, where that is another moment.
    pub failure: Option<State>,
    /// A line to draw, in bytes: what the program may have at most.
    pub limit: Option<u64>,
}

impl Picture {
    /// Looks at device number `index` of a file's devices. Without a limit the line is at what the
    /// process could have when an allocation first failed.
    ///
    /// # Panics
    /// If the file has fewer devices.
    #[must_use]
    pub fn new(
        file: &DetailedTrace,
        index: usize,
        policies: Vec<PolicyRow>,
        limit: Option<u64>,
    ) -> Self {
        let recorded = Recorded::new(file, index);
        let timeline = Timeline::new(&recorded);
        let inspection = Inspection::of(file, &recorded, &timeline, policies);
        let names = Names::new(&file.stacks);
        let knows_reserved = inspection.peak_reserved_bytes.is_some();
        let capacity = inspection.ooms.first().filter(|_| knows_reserved).map(|oom| oom.capacity());
        let failure = inspection
            .ooms
            .first()
            .map(|oom| &oom.moment)
            .filter(|moment| moment.events != inspection.peak.events)
            .map(|moment| State {
                time_us: moment.time_us,
                ..State::new(&recorded, &names, moment.events)
            });
        Self {
            map: AddressMap::new(&recorded, &timeline),
            state: State::new(&recorded, &names, inspection.peak.events),
            failure,
            limit: limit.or(capacity),
            inspection,
            timeline,
        }
    }
}

/// A figure by its name.
#[derive(Debug)]
pub struct Figure {
    /// For file names.
    pub name: &'static str,
    /// For people.
    pub title: String,
    /// For the style sheet of the page: it shows what fits its width.
    class: &'static str,
    drawing: Svg,
}

impl Figure {
    /// The figure as an SVG file, with its colours.
    #[must_use]
    pub fn document(&self) -> String {
        self.drawing.document(&self.title)
    }

    /// The figure as a part of the page, in the colours of its theme.
    pub(crate) fn inline(&self) -> String {
        self.drawing.inline(self.class, &self.title)
    }
}

/// Policies with a line of what they reserved, numbered as their colours are.
pub(crate) fn lines(inspection: &Inspection) -> impl Iterator<Item = (usize, &PolicyRow)> {
    inspection.policies.iter().filter(|row| !row.reserved.is_empty()).enumerate()
}

/// All figures that there is something to draw for. Without history there is nothing over time.
#[must_use]
pub fn figures(picture: &Picture) -> Vec<Figure> {
    if !picture.inspection.has_history {
        return at_once::peak(picture).into_iter().collect();
    }
    let figures = [
        over_time::memory(picture),
        over_time::causes(picture),
        over_time::map(picture),
        at_once::peak(picture),
        at_once::failure(picture),
        at_once::policies(picture, Layout::WIDE),
        at_once::calls(picture, Layout::WIDE),
    ];
    figures.into_iter().flatten().collect()
}

pub(crate) use at_once::{Layout, OWNER_COLOURS, calls, policies};
pub(crate) use over_time::LAYERS;
