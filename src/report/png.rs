//! Pictures as PNG, where the crate was built with its feature `png`: it takes a renderer of 35 crates, and fonts of
//! the machine.

use super::svg::Picture;
use thiserror::Error;

/// Pictures cannot be written as PNG.
#[derive(Debug, Error)]
pub enum PngError {
    #[error(
        "this build of uqac writes no PNG; build it with `cargo build --release --features png`, or convert the SVG \
         pictures"
    )]
    NotBuilt,
    #[error("no fonts were found on this machine, and PNG pictures need one; the SVG pictures do not")]
    NoFonts,
    #[error("the picture {picture} cannot be drawn: {why}")]
    Drawing { picture: String, why: String },
}

/// The pictures in their light colours, twice as large as they are given.
#[cfg(not(feature = "png"))]
pub fn pngs(_pictures: &[Picture]) -> Result<Vec<Vec<u8>>, PngError> {
    Err(PngError::NotBuilt)
}

/// The pictures in their light colours, twice as large as they are given.
#[cfg(feature = "png")]
pub fn pngs(pictures: &[Picture]) -> Result<Vec<Vec<u8>>, PngError> {
    let options = drawing::options()?;
    let draw = |picture: &Picture| {
        let failed = |why| PngError::Drawing { picture: picture.name.clone(), why };
        drawing::png(&picture.standalone(), &options).map_err(failed)
    };
    pictures.iter().map(draw).collect()
}

#[cfg(feature = "png")]
mod drawing {
    use super::PngError;
    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree};

    const SCALE: f32 = 2.0;

    /// The machine's fonts, with one that stands for `sans-serif`.
    pub fn options() -> Result<Options<'static>, PngError> {
        const PREFERRED: [&str; 5] = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica"];
        let mut options = Options::default();
        let fonts = options.fontdb_mut();
        fonts.load_system_fonts();
        let families: Vec<String> =
            fonts.faces().filter_map(|face| face.families.first()).map(|(name, _)| name.clone()).collect();
        let preferred = PREFERRED.into_iter().find(|name| families.iter().any(|family| family == name));
        let family = preferred.map(str::to_owned).or_else(|| families.into_iter().min()).ok_or(PngError::NoFonts)?;
        fonts.set_sans_serif_family(family);
        Ok(options)
    }

    /// A picture's standalone SVG as PNG.
    pub fn png(svg: &str, options: &Options) -> Result<Vec<u8>, String> {
        let tree = Tree::from_str(svg, options).map_err(|error| error.to_string())?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or("it has no size")?;
        let mut pixels = Pixmap::new(size.width(), size.height()).ok_or("it is too large")?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| error.to_string())
    }
}
