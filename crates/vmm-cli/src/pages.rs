//! `vmm report`.

use crate::exit::Exit;
use crate::inputs::{tell_apart, trace_files};
use crate::inspect::read;
use crate::options::{FigureFormat, ReportOptions};
use crate::policies::policies;
use crate::terminal::Terminal;
use std::fs;
use std::path::Path;
use vmm_report::{Picture, Recorded, figures, html, png};
use vmm_trace::DetailedTrace;

/// Reads all inputs and writes the report and the figures.
pub(crate) fn run(options: &ReportOptions, terminal: Terminal) -> Exit {
    let shows_progress = terminal.shows_progress && !options.no_progress;
    let mut exit = Exit::Success;
    let mut fail = |line: String| {
        eprintln!("error: {line}");
        exit = exit.worse(Exit::BadInput);
    };
    let mut pictures = Vec::new();
    for input in &options.inputs {
        match trace_files(input) {
            Err(line) => fail(line),
            Ok(files) => {
                for path in files {
                    match read(&path, shows_progress) {
                        Ok(file) => pictures.extend(draw(&file, options, shows_progress)),
                        Err(error) => fail(error.to_string()),
                    }
                }
            }
        }
    }
    if pictures.is_empty() {
        return exit;
    }
    tell_apart(pictures.iter_mut().map(|picture| &mut picture.inspection.name));
    if let Some(output) = &options.output {
        let title = match &pictures[..] {
            [one] => format!("GPU memory of {}", one.inspection.name),
            all => format!("GPU memory of {} devices", all.len()),
        };
        if let Err(line) = write(output, html(&title, &pictures).as_bytes()) {
            fail(line);
        }
    }
    if let Some(folder) = &options.figures
        && let Err(line) = write_figures(folder, &pictures, options.format)
    {
        fail(line);
    }
    exit
}

fn draw(file: &DetailedTrace, options: &ReportOptions, shows_progress: bool) -> Vec<Picture> {
    let draw_one = |index: usize| {
        let recorded = Recorded::new(file, index);
        let rows = if options.no_replay {
            Vec::new()
        } else {
            policies(&file.trace.name, &recorded, shows_progress)
        };
        let limit = options.limit.map(|limit| {
            // A line on paper: there is no device whose granule could matter.
            limit.resolve(recorded.trace.peak_requested_bytes(), 1)
        });
        Picture::new(file, index, rows, limit)
    };
    (0..file.trace.devices.len()).map(draw_one).collect()
}

fn write_figures(folder: &Path, pictures: &[Picture], format: FigureFormat) -> Result<(), String> {
    let shown = folder.display();
    fs::create_dir_all(folder).map_err(|error| {
        format!("{shown}: the folder cannot be made: {error}; choose another one")
    })?;
    for picture in pictures {
        for figure in figures(picture) {
            let document = figure.document();
            let file = |ending: &str| {
                let name = picture.inspection.name.replace(['/', '\\', '#', ' '], "_");
                folder.join(format!("{name}.{}.{ending}", figure.name))
            };
            if format != FigureFormat::Png {
                write(&file("svg"), document.as_bytes())?;
            }
            if format != FigureFormat::Svg {
                let pixels =
                    png(&document).map_err(|error| format!("{}: {error}", figure.title))?;
                write(&file("png"), &pixels)?;
            }
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| {
        format!("{}: cannot be written: {error}; choose another place", path.display())
    })
}
