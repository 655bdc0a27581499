//! Pictures as SVG: the shapes, the colours, and the files.

pub(crate) mod canvas;
pub(crate) mod colors;
pub(crate) mod nested_boxes;
pub(crate) mod picture_file;
