//! The buffers of a job, as they are requested together.

use crate::error::{Bytes, Error, Result};
use crate::segment::gpu_layout;
use crate::segment::options::{BufferOptions, MAX_SIZE};
use hostbuf_protocol::environment::variable_byte;
use hostbuf_protocol::limits::MAX_BUFFERS;

/// The maximum number of sections of all buffers of a job.
pub const MAX_SECTIONS: usize = 250;

/// Checks the options of all buffers of a job.
///
/// # Errors
/// As [`BufferOptions::check`] for each; [`Error::Invalid`] for no buffers, too many, two with one
/// name, or a sum that is too large.
pub fn check_all(buffers: &[BufferOptions]) -> Result<()> {
    if buffers.is_empty() || buffers.len() > MAX_BUFFERS {
        return Err(Error::invalid(format!("{} buffers: expected 1 to {MAX_BUFFERS}", buffers.len())));
    }
    for (i, buffer) in buffers.iter().enumerate() {
        buffer.check()?;
        if buffers[..i].iter().any(|b| b.name == buffer.name) {
            return Err(Error::invalid(format!("two buffers are named \"{}\"", buffer.name)));
        }
        let variable =
            |b: &BufferOptions| b.name.bytes().map(variable_byte).map(char::from).collect::<String>();
        let own = variable(buffer);
        if let Some(other) = buffers[..i].iter().find(|b| variable(b) == own) {
            return Err(Error::invalid(format!(
                "buffers \"{}\" and \"{}\" have the same environment variable HOSTBUF_ADDRESS_{own}: rename one of them",
                other.name, buffer.name
            )));
        }
    }
    let sections: usize = buffers.iter().map(|b| b.sections.len()).sum();
    if sections > MAX_SECTIONS {
        return Err(Error::invalid(format!(
            "{sections} sections: expected at most {MAX_SECTIONS} in all buffers"
        )));
    }
    gpu_layout::check(buffers)?;
    let sum = buffers.iter().map(BufferOptions::requested).fold(0u64, u64::saturating_add);
    if sum > MAX_SIZE {
        let (asked, most) = (Bytes(sum), Bytes(MAX_SIZE));
        return Err(Error::invalid(format!(
            "the sizes add up to {asked}: the address space holds at most {most}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, Section};

    #[test]
    fn a_job_has_a_largest_number_of_sections() {
        let with = |count: usize| {
            let options = BufferOptions::new(0).pages(Pages::Small);
            (0..count).fold(options, |options, i| options.section(Section::new(format!("s{i}"), 1)))
        };
        assert!(check_all(&[with(MAX_SECTIONS)]).is_ok());
        let many = check_all(&[with(MAX_SECTIONS + 1)]).unwrap_err().to_string();
        assert!(many.contains("251 sections: expected at most 250"), "{many}");
    }

    #[test]
    fn a_buffer_may_have_sections_on_gpus_alone() {
        let options = BufferOptions::new(0).section(Section::new("a", 1 << 30).gpus([0]));
        assert!(check_all(std::slice::from_ref(&options)).is_ok());
        assert_eq!(
            (options.requested(), options.demand().length(), options.listed_ranges()),
            (4096, 4096, 0)
        );
        for pages in [Pages::Huge2M, Pages::Huge1G, Pages::Transparent] {
            let huge = options.clone().pages(pages);
            assert!(check_all(std::slice::from_ref(&huge)).is_ok());
            assert_eq!((huge.demand().length(), huge.file_pages()), (4096, Pages::Small), "{pages}");
            let mixed = huge.section(Section::new("b", 1));
            assert_eq!(mixed.file_pages(), pages);
        }
        let mixed = options.section(Section::new("b", 8192));
        assert_eq!((mixed.requested(), mixed.listed_ranges()), (8192, 1));
        let many =
            (0..33).fold(mixed, |options, i| options.section(Section::new(format!("s{i}"), 1).gpus([0])));
        assert!(check_all(&[many]).unwrap_err().to_string().contains("34 GPU sections"));
    }
}
