//! The sections of a buffer as C sees them.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null;

use library::HostBuffer;
use library::segment::SectionIdentity;

/// A section of a buffer. Its texts and arrays are valid as long as the buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_section_info {
    /// The size of this structure: initialize it with `HOSTBUF_SECTION_INFO_INIT`.
    pub struct_size: usize,
    /// The name, empty for the part of a buffer that is in no section.
    pub name: *const c_char,
    /// The address of the first byte, the same in every rank of every host.
    pub address: *mut c_void,
    /// The offset from the beginning of the buffer, in bytes.
    pub offset: usize,
    /// The usable size, in bytes: the requested one, rounded up to whole pages.
    pub size: usize,
    /// The requested placement, or null if there is none.
    pub numa: *const c_char,
    /// The number of NUMA nodes in the arrays below; 0 without a placement.
    pub node_count: usize,
    /// The nodes.
    pub nodes: *const u32,
    /// The number of bytes that the placement requests on each node.
    pub requested: *const u64,
    /// The number of bytes that were verified to be on each node.
    pub obtained: *const u64,
}

/// The owner of the texts and arrays of a `hostbuf_section_info`.
pub struct OwnedSection {
    name: CString,
    numa: Option<CString>,
    address: usize,
    offset: usize,
    size: usize,
    nodes: Vec<u32>,
    requested: Vec<u64>,
    obtained: Vec<u64>,
}

impl OwnedSection {
    /// Returns the sections of a buffer, from its beginning on.
    pub fn all(buffer: &HostBuffer) -> Vec<OwnedSection> {
        let start = buffer.as_ptr().as_ptr() as usize;
        buffer.sections().map(|section| OwnedSection::new(start, &section)).collect()
    }

    fn new(start: usize, section: &SectionIdentity) -> OwnedSection {
        // No name and no placement contains NUL.
        let text = |text: String| CString::new(text).unwrap_or_default();
        let offset = section.offset as usize;
        OwnedSection {
            name: text(section.name.clone()),
            numa: section.placement.as_ref().map(|placement| text(placement.to_string())),
            address: start + offset,
            offset,
            size: section.length as usize,
            nodes: section.nodes.iter().map(|on| on.node.0).collect(),
            requested: section.nodes.iter().map(|on| on.requested).collect(),
            obtained: section.nodes.iter().map(|on| on.obtained).collect(),
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &CString {
        &self.name
    }

    /// Returns the section with pointers to the texts and arrays of this one.
    pub fn info(&self) -> hostbuf_section_info {
        fn first<T>(array: &[T]) -> *const T {
            if array.is_empty() { null() } else { array.as_ptr() }
        }
        hostbuf_section_info {
            struct_size: size_of::<hostbuf_section_info>(),
            name: self.name.as_ptr(),
            address: self.address as *mut c_void,
            offset: self.offset,
            size: self.size,
            numa: self.numa.as_ref().map_or(null(), |numa| numa.as_ptr()),
            node_count: self.nodes.len(),
            nodes: first(&self.nodes),
            requested: first(&self.requested),
            obtained: first(&self.obtained),
        }
    }
}
