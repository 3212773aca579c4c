//! `vmm report`.

use crate::exit::Exit;
use crate::inputs::tell_apart;
use crate::options::{FigureFormat, ReportOptions};
use crate::recordings::{bad_input, each_device};
use crate::terminal::Terminal;
use std::fs;
use std::path::Path;
use vmm_report::{Picture, figures, html, png};

/// Reads all inputs and writes the report and the figures.
pub(crate) fn run(options: &ReportOptions, terminal: Terminal) -> Exit {
    let mut pictures = Vec::new();
    let mut exit = each_device(&options.recordings, terminal, &mut |file, index, rows| {
        let limit = options.limit.map(|limit| {
            // A line on paper: there is no device whose granule could matter.
            limit.resolve(file.trace.devices[index].peak_requested_bytes(), 1)
        });
        pictures.push(Picture::new(file, index, rows, limit));
    });
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
            exit = exit.worse(bad_input(&line));
        }
    }
    if let Some(folder) = &options.figures
        && let Err(line) = write_figures(folder, &pictures, options.format)
    {
        exit = exit.worse(bad_input(&line));
    }
    exit
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
