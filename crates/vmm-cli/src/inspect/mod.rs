//! `vmm inspect`.

mod show;

use crate::exit::Exit;
use crate::inputs::tell_apart;
use crate::options::InspectOptions;
use crate::recordings::each_device;
use crate::terminal::Terminal;
use vmm_report::Inspection;

/// Looks at all inputs and prints what was found.
pub(crate) fn run(options: &InspectOptions, terminal: Terminal) -> Exit {
    let mut found = Vec::new();
    let exit = each_device(&options.recordings, terminal, &mut |file, index, rows| {
        found.push(Inspection::new(file, index, rows));
    });
    tell_apart(found.iter_mut().map(|inspection| &mut inspection.name));
    if options.json {
        // Numbers and strings only: JSON can say all of it.
        let mut text = serde_json::to_string_pretty(&found).expect("numbers and strings");
        text.push('\n');
        return exit.worse(terminal.print(&text));
    }
    let mut texts: Vec<String> =
        found.iter().map(|inspection| show::text(inspection, terminal.coloured)).collect();
    if found.len() > 1 {
        texts.push(show::overview(&found, terminal.coloured));
    }
    if texts.is_empty() { exit } else { exit.worse(terminal.print(&texts.join("\n"))) }
}
