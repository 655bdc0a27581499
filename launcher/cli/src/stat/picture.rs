//! The buffers of this host as a picture.

use std::collections::{BTreeMap, BTreeSet};

use hostbuf::segment::SectionIdentity;
use hostbuf::{Bytes, NodeId, Placement};

use super::control::Snapshot;
use super::gpu_picture;
use super::report::{Buffer, BufferRegistration, Job, user};
use crate::picture::canvas::{Canvas, LINE_HEIGHT, MARGIN, Rect, TextForm};
use crate::picture::colors;

/// The width of a whole buffer in pixels.
const WIDTH: f64 = 720.0;
/// The left edge of the buffers, behind the names of nodes and devices, in pixels.
const LEFT: f64 = MARGIN + 96.0;
/// The height of the bar of a memory in pixels.
const BAR: f64 = 24.0;
/// The height of the bar of a registration in pixels.
const THIN: f64 = 8.0;

/// Draws all jobs of `host`: each buffer with its sections, nodes, fill state and registrations.
pub(super) fn draw(host: &str, jobs: &[Job]) -> String {
    let mut canvas = Canvas::new(&format!("the buffers of {host}"));
    canvas.text(MARGIN, MARGIN + 12.0, TextForm::TITLE, &format!("Host buffers on {host}"));
    let mut nodes = BTreeSet::new();
    let mut bottom = MARGIN + 24.0;
    if jobs.iter().all(|job| job.buffers.is_empty()) {
        canvas.text(MARGIN, bottom + LINE_HEIGHT, TextForm::BODY, "no host buffers");
    }
    for job in jobs {
        bottom = job_at(&mut canvas, job, bottom, &mut nodes);
    }
    legend(&mut canvas, bottom, &nodes);
    canvas.finish()
}

/// Draws a job. Returns its lower edge.
fn job_at(canvas: &mut Canvas, job: &Job, top: f64, nodes: &mut BTreeSet<NodeId>) -> f64 {
    let (ranks, children) = job.counts();
    let text = format!(
        "job {:.8}…, user {}, {ranks} {}{}",
        format!("{:032x}", job.number),
        user(job.uid),
        if ranks == 1 { "rank" } else { "ranks" },
        if children > 0 { format!(" with {children} children") } else { String::new() }
    );
    canvas.text(MARGIN, top + LINE_HEIGHT, TextForm::HEAD, &text);
    let mut bottom = top + LINE_HEIGHT + 8.0;
    for problem in job.problems() {
        canvas.text(MARGIN, bottom + 12.0, TextForm::BODY, &format!("! {problem}"));
        bottom += LINE_HEIGHT;
    }
    for buffer in &job.buffers {
        // A buffer that no process maps is not listed, so the positions may differ.
        let known = job.control.as_ref().ok().and_then(|snapshot| {
            let index = snapshot.identity.buffers.iter().position(|known| known.name() == buffer.name)?;
            Some((snapshot, index))
        });
        let own = |(snapshot, index)| section_identities(snapshot, index);
        let sections: Vec<&SectionIdentity> = known.map_or(Vec::new(), own);
        for section in &sections {
            nodes.extend(section.nodes.iter().map(|on| on.node));
        }
        bottom = buffer_at(canvas, buffer, &sections, bottom);
        if let Some((snapshot, index)) = known {
            bottom = gpu_picture::draw(canvas, snapshot, index, LEFT, WIDTH, bottom);
        }
        bottom += 18.0;
    }
    bottom
}

/// Returns the sections of host memory of the buffer with this index.
fn section_identities(snapshot: &Snapshot, buffer: usize) -> Vec<&SectionIdentity> {
    snapshot.identity.sections.iter().filter(|section| section.buffer == buffer).collect()
}

/// Draws a buffer. Returns its lower edge.
fn buffer_at(canvas: &mut Canvas, buffer: &Buffer, sections: &[&SectionIdentity], top: f64) -> f64 {
    let length = buffer.length.max(1);
    let place = |offset: u64| LEFT + WIDTH * (offset.min(length) as f64 / length as f64);
    canvas.text(MARGIN, top + 12.0, TextForm::HEAD, &TextForm::HEAD.fitting(&buffer.name, 88.0));
    canvas.text(LEFT, top + 12.0, TextForm::BODY, &heading(buffer));
    let mut y = top + if sections.is_empty() { 20.0 } else { 36.0 };
    memory(canvas, Rect::new(LEFT, y, WIDTH, BAR), sections, &place);
    y += BAR;
    let used = buffer.state.as_ref().and_then(|state| state.high_water.as_ref().ok()).copied().unwrap_or(0);
    for (node, made) in copies(sections) {
        y += 4.0;
        canvas.text(MARGIN, y + 16.0, TextForm::BODY, &format!("copy, node {node}"));
        for section in made {
            let (from, to) = (place(section.offset), place(section.offset + section.length));
            let frame = Rect::new(from, y, to - from, BAR);
            canvas.rectangle(frame, 0.0, colors::of_node(node), 0.75, colors::PAPER);
        }
        y += BAR;
    }
    if used > 0 {
        y += 5.0;
        canvas.line((place(0), y), (place(used), y), colors::TEXT);
        canvas.line((place(used), y - 3.0), (place(used), y + 3.0), colors::TEXT);
        canvas.text(MARGIN, y + 4.0, TextForm::SMALL, &format!("used {}", Bytes(used)));
        y += 5.0;
    }
    for (registration, processes) in registrations(buffer) {
        y += 4.0;
        let (from, to) = (place(registration.offset), place(registration.offset + registration.length));
        canvas.rectangle(
            Rect::new(from, y, (to - from).max(1.0), THIN),
            2.0,
            colors::FAINT,
            0.9,
            colors::PAPER,
        );
        let processes = if processes == 1 { String::new() } else { format!(", {processes} processes") };
        let text = format!("{}, {}{processes}", registration.device, registration.access);
        // Beside the bar, if there is room.
        let fits = to + 6.0 + TextForm::SMALL.width(&text) <= LEFT + WIDTH;
        let beside = if fits { to } else { LEFT + WIDTH };
        canvas.text(beside + 6.0, y + THIN, TextForm::SMALL, &text);
        canvas.text(MARGIN, y + THIN, TextForm::SMALL, "registered");
        y += THIN;
    }
    y
}

/// Draws the memory of a buffer to `whole`: its sections in the colours of their nodes.
fn memory(canvas: &mut Canvas, whole: Rect, sections: &[&SectionIdentity], place: &impl Fn(u64) -> f64) {
    let y = whole.y;
    canvas.rectangle(whole, 0.0, colors::ANY_NODE, 1.0, colors::PAPER);
    for section in sections {
        let (from, to) = (place(section.offset), place(section.offset + section.length));
        let blocks = !matches!(section.placement, Some(Placement::Interleave(_)));
        let on: Vec<_> = section.nodes.iter().filter(|on| on.obtained > 0).collect();
        if blocks {
            let mut left = from;
            // The nodes of copies have bars of their own.
            let count = if section.has_copies() { 1 } else { on.len() };
            for on in on.iter().take(count) {
                let width = (to - from) * on.obtained as f64 / section.length.max(1) as f64;
                let frame = Rect::new(left, y, width, BAR);
                canvas.rectangle(frame, 0.0, colors::of_node(on.node), 0.75, colors::PAPER);
                left += width;
            }
        } else {
            let own: Vec<&'static str> = on.iter().map(|on| colors::of_node(on.node)).collect();
            let fill = if own.is_empty() { colors::ANY_NODE.to_owned() } else { canvas.stripes(&own) };
            canvas.rectangle(Rect::new(from, y, to - from, BAR), 0.0, &fill, 0.75, colors::PAPER);
        }
        let form = TextForm::SMALL;
        let text = form.fitting(&label(section), to - from - 4.0);
        canvas.text(from + 2.0, y - 4.0, form, &text);
    }
}

/// Returns the name, the placement and the length of a section.
fn label(section: &SectionIdentity) -> String {
    let name = if section.name.is_empty() { "rest" } else { &section.name };
    let placement = section.placement.as_ref().map(|placement| format!("numa={placement}"));
    let length = Bytes(section.length).to_string();
    [Some(name.to_owned()), placement, Some(length)].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Describes a buffer in one line.
fn heading(buffer: &Buffer) -> String {
    let state = buffer.state.as_ref().and_then(|state| state.fill.as_ref().ok());
    let words = [
        Some(Bytes(buffer.size.unwrap_or(buffer.length)).to_string()),
        buffer.address.map(|address| format!("at {address:#x}")),
        buffer.pages.as_ref().map(|(pages, huge)| match *huge {
            0 => format!("pages {pages}"),
            huge => format!("pages {pages} ({} on huge pages)", Bytes(huge)),
        }),
        state.map(|state| state.name().to_owned()),
        (buffer.sealed == Some(true)).then(|| "sealed".to_owned()),
        Some(format!("{} of memory in all processes", Bytes(buffer.pss()))),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the sections of which a node has a copy, for each such node.
fn copies<'a>(sections: &[&'a SectionIdentity]) -> BTreeMap<NodeId, Vec<&'a SectionIdentity>> {
    let mut copies: BTreeMap<NodeId, Vec<&SectionIdentity>> = BTreeMap::new();
    for section in sections.iter().filter(|section| section.has_copies()) {
        for on in section.nodes.iter().skip(1).filter(|on| on.obtained > 0) {
            copies.entry(on.node).or_default().push(section);
        }
    }
    copies
}

/// Returns each distinct registration with the number of processes that hold it.
fn registrations(buffer: &Buffer) -> Vec<(&BufferRegistration, usize)> {
    let mut found: Vec<(&BufferRegistration, usize)> = Vec::new();
    let key = |held: &BufferRegistration| (held.device.clone(), held.offset, held.length, held.access);
    for registration in &buffer.registrations {
        match found.iter_mut().find(|(known, _)| key(known) == key(registration)) {
            Some((_, count)) => *count += 1,
            None => found.push((registration, 1)),
        }
    }
    found
}

/// Draws the meanings of the colours.
fn legend(canvas: &mut Canvas, top: f64, nodes: &BTreeSet<NodeId>) {
    let mut x = LEFT;
    let named = nodes.iter().map(|&node| (colors::of_node(node), format!("node {node}")));
    for (color, text) in named.chain([(colors::ANY_NODE, "any node".to_owned())]) {
        canvas.rectangle(Rect::new(x, top + 4.0, 12.0, 12.0), 0.0, color, 0.75, colors::PAPER);
        canvas.text(x + 16.0, top + 14.0, TextForm::SMALL, &text);
        x += 16.0 + TextForm::SMALL.width(&text) + 16.0;
    }
    if nodes.len() > 1 {
        canvas.text(x, top + 14.0, TextForm::SMALL, "stripes: nodes in turn");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::control::BufferState;
    use crate::stat::report::Member;
    use hostbuf::job::Solo;
    use hostbuf::segment::{BufferIdentity, Identity};
    use hostbuf::{Access, BufferOptions, FillState, HostBuffer, Pages, Phase, Section};

    const MIB: u64 = 1 << 20;

    /// Returns a job on two nodes with a frozen buffer of four sections.
    fn job() -> Option<Job> {
        let section = |name: &str, mib: u64, numa: &str| {
            Section::new(name, mib * MIB).numa(numa.parse().expect("a placement"))
        };
        let options = BufferOptions::new(14 * MIB)
            .section(section("grid", 4, "0"))
            .section(section("halo", 2, "interleave"))
            .section(section("index", 6, "copies"));
        // Containers may forbid placing memory.
        let buffer = match HostBuffer::allocate(&Solo, options) {
            Err(error) if error.to_string().contains("SYS_NICE") => return None,
            buffer => buffer.expect("there is memory"),
        };
        let mut identity = Identity::new(0xabcd_ef12 << 96);
        identity.buffers = vec![BufferIdentity::new("default", Pages::Transparent)];
        identity.sections = buffer.sections().collect();
        for section in &mut identity.sections {
            section.nodes.truncate(1);
            if let (true, Some(first)) = (section.name != "grid", section.nodes.first()) {
                let mut second = *first;
                second.node = NodeId(1);
                section.nodes.push(second);
            }
        }
        let registration = |pid: i32| BufferRegistration {
            pid,
            name: "app".into(),
            device: "cuda:0 <fast>".into(),
            offset: 4 * MIB,
            length: 8 * MIB,
            access: Access::READ,
        };
        let state = BufferState {
            fill: Ok(FillState::Frozen),
            generation: Ok(1),
            high_water: Ok(13 * MIB),
            gpu: Ok((None, Vec::new())),
        };
        let drawn = Buffer {
            name: "default".into(),
            address: Some(0x5500_0000_0000),
            size: Some(14 * MIB),
            length: 14 * MIB,
            pages: Some(("thp".into(), 14 * MIB)),
            lazy: Some(false),
            state: Some(state.clone()),
            sealed: Some(true),
            taken: None,
            areas: Vec::new(),
            registrations: vec![registration(7), registration(8)],
        };
        let phases = [std::time::Duration::ZERO; Phase::COUNT];
        let snapshot =
            Snapshot { identity, phases, states: vec![state], registrations: Vec::new(), unlisted: Ok(0) };
        let rank = |pid| Member { pid, name: "app".into(), child: false };
        Some(Job {
            number: 0xabcd_ef12 << 96,
            uid: 0,
            control: Ok(snapshot),
            ranks: vec![rank(7), rank(8)],
            agents: Vec::new(),
            buffers: vec![drawn],
            loads: None,
        })
    }

    #[test]
    fn sections_copies_and_registrations_are_drawn() {
        let Some(job) = job() else { return };
        let picture = draw("h0", &[job]);
        for words in [
            "Host buffers on h0",
            "job abcdef12…, user root, 2 ranks",
            "14 MiB, at 0x550000000000, pages thp (14 MiB on huge pages), frozen, sealed",
            "grid, numa=0, 4 MiB",
            "index, numa=copies, 6 MiB",
            "rest, 2 MiB",
            "copy, node 1",
            "used 13 MiB",
            "cuda:0 &lt;fast&gt;, read, 2 processes",
            "url(#stripes0)",
            "stripes: nodes in turn",
        ] {
            assert!(picture.contains(words), "{words} is missing: {picture}");
        }
        assert_eq!(picture.matches("copy, node").count(), 1);
    }

    #[test]
    fn a_host_without_buffers_has_a_picture() {
        assert!(draw("h0", &[]).contains("no host buffers"));
    }
}
