//! A raw pointer as a message: one rank sends the address of a node, and a rank of another host
//! follows it.

#![allow(unsafe_code, reason = "follows a pointer that another host sent")]

use hostbuf::job::all_or_none;
use hostbuf::{Error, HostBuffer, Result};

use crate::classify::Contig;
use crate::index::{Index, Node};
use crate::kmer::{kmers, letters};
use crate::team::{Member, Team};

/// The address that was sent, and the data at that address.
pub struct Delivery {
    pub from: usize,
    pub to: usize,
    pub address: u64,
    /// The data that both ranks read at the address.
    pub content: String,
}

const CONTENT: usize = 512;

/// Sends the address of a node that some contig hits from rank 0 to a rank of the last host. `None`
/// when there is no other rank, or no contig hits anything. Collective.
///
/// # Errors
/// When what lies there is not the same for both ranks.
pub fn deliver(
    team: &Team,
    members: &[Member],
    buffer: &HostBuffer,
    index: &Index,
    contigs: &[Contig],
) -> Result<Option<Delivery>> {
    let from = 0;
    let last_host = members.iter().map(|m| m.host_index).max();
    let other_host = members.iter().position(|m| Some(m.host_index) == last_host && m.host_index > 0);
    let Some(to) = other_host.or_else(|| (team.size() > 1).then(|| team.size() - 1)) else { return Ok(None) };

    let mut message = [0; 8];
    if team.rank() == from {
        let address = node_in(index, contigs).map_or(0, |node| std::ptr::from_ref(node) as u64);
        message = address.to_ne_bytes();
    }
    team.group.broadcast(&mut message, from)?;
    let address = u64::from_ne_bytes(message);
    if address == 0 {
        return Ok(None);
    }

    let mine = [from, to].contains(&team.rank()).then(|| content_at(address, buffer, index)).transpose();
    let mine = all_or_none(&*team.group, mine)?.unwrap_or_default();
    let mut theirs = [0; CONTENT];
    if team.rank() == to {
        theirs[..mine.len()].copy_from_slice(mine.as_bytes());
    }
    team.group.broadcast(&mut theirs, to)?;
    let theirs = String::from_utf8_lossy(&theirs).trim_end_matches('\0').to_owned();
    let same = if team.rank() != from || mine == theirs {
        Ok(())
    } else {
        let why = format!("at {address:#x} lies \"{mine}\" here, and \"{theirs}\" there");
        Err(Error::Replicate { host: members[to].host.clone(), why })
    };
    all_or_none(&*team.group, same)?;
    Ok(Some(Delivery { from, to, address, content: theirs }))
}

/// Returns the first node that a contig hits.
fn node_in<'a>(index: &'a Index, contigs: &[Contig]) -> Option<&'a Node> {
    contigs.iter().find_map(|contig| {
        let words: Vec<u64> = kmers(&contig.bases).map(|(_, kmer)| kmer).collect();
        let mut hit = None;
        index.look_up(&words, |_, node| _ = hit.get_or_insert(node));
        hit
    })
}

fn content_at(address: u64, buffer: &HostBuffer, index: &Index) -> Result<String> {
    let at = address as *const Node;
    if !buffer.contains(at.cast(), size_of::<Node>()) || !at.is_aligned() {
        return Err(Error::Invalid { what: format!("{address:#x} is no node of the buffer") });
    }
    // SAFETY: the address of a node in the sender's buffer; this host's buffer has the same bytes
    // at the same address, and nobody writes to them any more.
    let node = unsafe { &*at };
    let site =
        index.site(node).ok_or(Error::Invalid { what: format!("the node at {address:#x} has no site") })?;
    let (kmer, genome) = (letters(node.kmer()), site.genome);
    let mut content = format!("{kmer}, base {} of {genome} ({})", site.position, site.record);
    while content.len() > CONTENT {
        content.pop();
    }
    Ok(content)
}
