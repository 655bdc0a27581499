//! The sections of the buffers in the report: the bytes that were requested and obtained on each
//! NUMA node.

use hostbuf::Bytes;
use hostbuf::segment::{Identity, SectionIdentity};
use serde_json::{Value, json};

/// The text for an unnamed part of a buffer.
const REST: &str = "-";

/// Returns the rows of all sections, one for each node; empty if there are none.
pub fn rows(identity: &Identity) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for section in &identity.sections {
        let first = first_cells(identity, section);
        let node = |node: &hostbuf::segment::NodeBytes| {
            [node.node.to_string(), Bytes(node.requested).to_string(), Bytes(node.obtained).to_string()]
        };
        let mut nodes: Vec<[String; 3]> = section.nodes.iter().map(node).collect();
        if nodes.is_empty() {
            nodes.push(["any", "-", "-"].map(str::to_owned));
        }
        for (i, cells) in nodes.into_iter().enumerate() {
            let blank = || vec![String::new(); first.len()];
            let begin = if i == 0 { first.clone() } else { blank() };
            rows.push([begin, cells.to_vec()].concat());
        }
    }
    if !rows.is_empty() {
        let head = ["SECTION", "OF", "ADDRESS", "SIZE", "NUMA", "NODE", "REQUESTED", "OBTAINED"];
        rows.insert(0, head.map(str::to_owned).to_vec());
    }
    rows
}

/// Returns the cells of a section that do not depend on a node.
fn first_cells(identity: &Identity, section: &SectionIdentity) -> Vec<String> {
    let buffer = identity.buffers.get(section.buffer);
    let address = buffer.map_or(0, |buffer| identity.address + buffer.offset) + section.offset;
    vec![
        if section.name.is_empty() { REST.to_owned() } else { section.name.clone() },
        buffer.map_or_else(|| "?".to_owned(), hostbuf::segment::BufferIdentity::name),
        format!("{address:#x}"),
        Bytes(section.length).to_string(),
        section.placement.as_ref().map_or_else(|| REST.to_owned(), ToString::to_string),
    ]
}

/// Returns the sections of the buffer with this index as JSON.
pub fn json(identity: &Identity, buffer: usize) -> Vec<Value> {
    let own = identity.sections.iter().filter(|section| section.buffer == buffer);
    let node = |node: &hostbuf::segment::NodeBytes| json!({ "node": node.node.0, "requested_bytes": node.requested, "obtained_bytes": node.obtained });
    let section = |section: &SectionIdentity| {
        json!({
            "name": if section.name.is_empty() { None } else { Some(&section.name) },
            "offset_bytes": section.offset,
            "length_bytes": section.length,
            "numa": section.placement.as_ref().map(ToString::to_string),
            "nodes": section.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    };
    own.map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::job::Solo;
    use hostbuf::{BufferOptions, HostBuffer, Section};

    #[test]
    fn each_node_of_a_section_has_a_row() {
        let placed = Section::new("grid", 8192).numa("0".parse().expect("a placement"));
        let options = BufferOptions::new(1 << 14).section(placed).section(Section::new("halo", 1));
        // Containers may forbid to place memory.
        let buffer = match HostBuffer::allocate(&Solo, options) {
            Err(error) if error.to_string().contains("SYS_NICE") => return,
            buffer => buffer.expect("there is memory"),
        };
        let mut identity = Identity::new(1);
        identity.address = 1 << 40;
        identity.buffers = vec![hostbuf::segment::BufferIdentity::new("default", hostbuf::Pages::Small)];
        identity.sections = buffer.sections().collect();
        let rows: Vec<String> = rows(&identity).into_iter().map(|row| row.join("|")).collect();
        assert_eq!(rows[1], "grid|default|0x10000000000|8 KiB|0|0|8 KiB|8 KiB");
        assert_eq!(rows[2], "halo|default|0x10000002000|4 KiB|-|any|-|-");
        assert_eq!(rows[3], "-|default|0x10000003000|4 KiB|-|any|-|-");
        let json = json(&identity, 0);
        assert_eq!(json[0]["nodes"][0]["obtained_bytes"], 8192);
        assert_eq!((json[0]["numa"].as_str(), json[2]["name"].as_str()), (Some("0"), None));
    }
}
