//! Makes pixels of figures.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels for each unit of a figure: sharp on dense screens and in print.
const SCALE: f32 = 2.0;

/// Why a figure could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// The machine has no fonts.
    #[error("no fonts are installed, so the figure would have no words; install one, or take SVG")]
    NoFonts,
    /// The drawing could not be read or is too large.
    #[error("the figure could not be drawn: {0}")]
    Drawing(String),
}

/// Fonts of the machine: reading them takes a while.
static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    fonts.load_system_fonts();
    // The figures ask for DejaVu Sans; where that and its like are missing, anything will do.
    let families = || fonts.faces().flat_map(|face| &face.families).map(|(name, _)| name.as_str());
    let usual = ["DejaVu Sans", "Arial", "Liberation Sans", "Noto Sans"];
    let found = usual.into_iter().find(|&name| families().any(|other| other == name));
    let sans = found.or_else(|| families().next()).map(str::to_owned);
    if let Some(sans) = sans {
        fonts.set_sans_serif_family(sans);
    }
    Arc::new(fonts)
});

/// Draws a figure that [`crate::Figure::document`] made, as a PNG file.
///
/// # Errors
/// [`PngError`]
pub fn png(document: &str) -> Result<Vec<u8>, PngError> {
    if FONTS.is_empty() {
        return Err(PngError::NoFonts);
    }
    let failed = |error: &dyn std::fmt::Display| PngError::Drawing(error.to_string());
    let options = Options { fontdb: Arc::clone(&FONTS), ..Options::default() };
    let tree = Tree::from_str(document, &options).map_err(|error| failed(&error))?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let pixels = size.and_then(|size| Pixmap::new(size.width(), size.height()));
    let mut pixels = pixels.ok_or_else(|| failed(&"it is too large"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(&error))
}
