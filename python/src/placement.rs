//! Placements and sections: those of a new buffer from Python's objects, and those of a buffer.

use hostbuf::{Error, HostBuffer, Placement, Section};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyMapping, PyTuple};

use crate::arguments::{argument, bytes};
use crate::error::raised;

/// The description of a section: the name, the offset, the length, the placement, and each node
/// with its requested and obtained bytes.
pub type SectionFields = (String, u64, u64, Option<String>, Vec<(u32, u64, u64)>);

/// Converts a placement: text in the syntax of the command line (`0,1`), the number of a node, or
/// `None`.
///
/// # Errors
/// InvalidError for text or a number that is not a valid placement, TypeError for other types.
pub fn placement(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<Placement>> {
    if given.is_none() {
        return Ok(None);
    }
    let is_number = given.hasattr("__index__")? && !given.is_instance_of::<PyBool>();
    let text = match is_number {
        true => argument::<u32>(name, given)?.to_string(),
        false => argument::<String>(name, given)?,
    };
    text.parse().map(Some).map_err(|error: hostbuf::MemoryError| raised(given.py(), error))
}

/// Converts the sections of a new buffer: a mapping of names to sizes, or to tuples of a size and a
/// placement; `None` for none.
///
/// # Errors
/// InvalidError for an invalid size or placement, TypeError for other types.
pub fn sections(given: &Bound<'_, PyAny>) -> PyResult<Vec<Section>> {
    if given.is_none() {
        return Ok(Vec::new());
    }
    let mapping = argument::<Bound<'_, PyMapping>>("sections", given)?;
    let each = |item: Bound<'_, PyAny>| {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let own = argument::<String>("a name in sections", &key)?;
        let name = format!("sections[\"{own}\"]");
        let Ok(parts) = value.cast::<PyTuple>() else { return Ok(Section::new(own, bytes(&name, &value)?)) };
        if parts.is_empty() || parts.len() > 2 {
            let what =
                format!("invalid {name}: expected a size and NUMA nodes, found a tuple of {}", parts.len());
            return Err(raised(given.py(), Error::Invalid { what }));
        }
        let section = Section::new(own, bytes(&name, &parts.get_item(0)?)?);
        let numa = match parts.len() {
            2 => placement(&format!("the NUMA nodes of {name}"), &parts.get_item(1)?)?,
            _ => None,
        };
        Ok(match numa {
            Some(numa) => section.numa(numa),
            None => section,
        })
    };
    mapping.items()?.iter().map(each).collect()
}

/// Describes the sections of a buffer, from its beginning on.
pub fn described(buffer: &HostBuffer) -> Vec<SectionFields> {
    let described = buffer.sections().map(|section| {
        let nodes = section.nodes.iter().map(|on| (on.node.0, on.requested, on.obtained)).collect();
        let placement = section.placement.as_ref().map(ToString::to_string);
        (section.name.clone(), section.offset, section.length, placement, nodes)
    });
    described.collect()
}
