//! `vmm probe`: what a device is, and what its calls take.
//!
//! [`findings`] is what comes out, [`measure`] the measurements on any device, [`board`] what NVML
//! knows, and [`show`] the text.

mod board;
mod findings;
mod measure;
mod show;

use crate::device::{self, Card, ProbedCard, VulkanCard};
use crate::exit::Exit;
use crate::options::{DeviceOption, ProbeOptions};
use crate::terminal::Terminal;
use board::Board;
use findings::Findings;
use std::time::Instant;
use vmm_core::{DeviceResult, VirtualMemoryDevice};
use vmm_vulkan::DeviceChoice;

/// Looks at a device, prints what was found, and says how it went.
pub(crate) fn run(options: &ProbeOptions, terminal: Terminal) -> Exit {
    let mut findings = Findings::of_device(options.device.to_string());
    let measured = match &options.device {
        DeviceOption::Mock => look_at_mock(options.no_measure, &mut findings),
        DeviceOption::Cuda(ordinal) => look_at_card(*ordinal, options.no_measure, &mut findings),
        DeviceOption::Vulkan(choice) => look_at_vulkan(choice, options.no_measure, &mut findings),
    };
    let mut exit = Exit::Success;
    if let Err(error) = measured {
        eprintln!("error: {}: {error}", options.device);
        exit = Exit::Failures;
    }
    let text =
        if options.json { findings.json() } else { show::text(&findings, terminal.coloured) };
    exit.worse(terminal.print(&text))
}

/// The mock's clock is its account: calls take no other time there.
fn look_at_mock(no_measure: bool, findings: &mut Findings) -> DeviceResult<()> {
    let mock = device::probed_mock();
    let now_ns = || mock.total_cost_ns();
    findings.add_device(&mock)?;
    if no_measure {
        return Ok(());
    }
    findings.add_measurements(&mock, &now_ns, [mock.make_stream(), mock.make_stream()])?;
    findings.add_largest_block(&mock)
}

fn look_at_card(ordinal: u32, no_measure: bool, findings: &mut Findings) -> DeviceResult<()> {
    let card = ProbedCard::open(ordinal);
    let board = match &card {
        Ok(card) => Board::of_uuid(&card.uuid()),
        // Without CUDA the ordinals are NVML's, which hides no card.
        Err(_) => Board::of_index(ordinal),
    };
    findings.add_board(board);
    let card = match card {
        Ok(card) => card,
        Err(reason) => {
            findings.note_missing("CUDA", &reason);
            return Ok(());
        }
    };
    findings.cuda_version = Some(card.cuda_version());
    if findings.uuid.is_none() {
        findings.uuid = Some(format!("GPU-{}", board::hyphenated(&card.uuid())));
    }
    findings.add_device(card.device())?;
    if no_measure {
        return Ok(());
    }
    findings.add_measurements(card.device(), &system_clock(), card.streams()?)?;
    match card.plain() {
        Ok(plain) => findings.add_largest_block(&plain),
        Err(reason) => {
            findings.note_missing("plain allocation", &reason);
            Ok(())
        }
    }
}

fn look_at_vulkan(
    choice: &DeviceChoice,
    no_measure: bool,
    findings: &mut Findings,
) -> DeviceResult<()> {
    let card = match VulkanCard::open(choice) {
        Ok(card) => card,
        Err(reason) => {
            findings.note_missing("Vulkan", &reason);
            return Ok(());
        }
    };
    let device = &**card.device();
    findings.add_device(device)?;
    findings.add_vulkan(device.about());
    if no_measure {
        return Ok(());
    }
    // Streams go with the process.
    findings.add_measurements(device, &system_clock(), [card.make_stream()?, card.make_stream()?])
}

/// Nanoseconds from now on.
fn system_clock() -> impl Fn() -> u64 {
    let start = Instant::now();
    move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Findings {
    /// Enters what the device says of itself.
    fn add_device(&mut self, device: &impl VirtualMemoryDevice) -> DeviceResult<()> {
        self.add_properties(device.properties());
        self.add_memory(device.memory_info()?);
        Ok(())
    }

    /// Enters what its calls take.
    fn add_measurements(
        &mut self,
        device: &impl VirtualMemoryDevice,
        now_ns: &dyn Fn() -> u64,
        streams: [vmm_core::StreamId; 2],
    ) -> DeviceResult<()> {
        let free = device.memory_info()?.free;
        self.calls = Some(measure::small_calls(device, now_ns, streams)?);
        self.frames = Some(measure::frames(device, now_ns, free)?);
        Ok(())
    }

    /// Enters the longest plain allocation that succeeds on `device`.
    fn add_largest_block(&mut self, device: &impl VirtualMemoryDevice) -> DeviceResult<()> {
        let free = device.memory_info()?.free;
        self.memory.largest_block_bytes = Some(measure::largest_block(device, free)?);
        Ok(())
    }
}
