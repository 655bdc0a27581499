//! The text of a section, as command lines contain it.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::segment::fields;
use crate::segment::options::{BufferOptions, DEFAULT_NAME};
use crate::segment::section::{Section, SectionArgument};

/// Parses `name=grid,size=4G,numa=0`; `buffer=index` names another buffer than `default`.
impl FromStr for SectionArgument {
    type Err = Error;

    fn from_str(text: &str) -> Result<SectionArgument> {
        let mut section = Section::new("", 0);
        let mut buffer = DEFAULT_NAME;
        let (mut named, mut sized) = (false, false);
        for (key, value) in fields::unique(text, "section")? {
            match key {
                "buffer" => buffer = value,
                "name" => (section.name, named) = (value.into(), true),
                "size" => (section.size, sized) = (fields::size(value)?, true),
                "numa" => section.numa = Some(value.parse()?),
                "gpu" => section.gpus = gpus(value)?,
                _ => {
                    return Err(Error::invalid(format!(
                        "unexpected \"{key}\" in section \"{text}\": expected name=, size=, numa=, gpu= or buffer="
                    )));
                }
            }
        }
        for (present, key) in [(named, "name"), (sized, "size")] {
            if !present {
                return Err(Error::invalid(format!("section \"{text}\" has no {key}=")));
            }
        }
        section.check()?;
        Ok(SectionArgument { buffer: buffer.into(), section })
    }
}

/// Parses the numbers of GPUs: `0,1`.
fn gpus(text: &str) -> Result<Vec<u32>> {
    let number = |part: &str| {
        // No sign, and no zero in front.
        let number = part.parse().ok().filter(|number: &u32| number.to_string() == part);
        number.ok_or_else(|| {
            Error::invalid(format!("invalid gpu=\"{text}\": expected the numbers of GPUs, such as 0 or 0,1"))
        })
    };
    text.split(',').map(number).collect()
}

/// Adds sections to the buffers that they name.
///
/// # Errors
/// [`Error::Invalid`] for a buffer that is not in the list.
pub fn add_sections(
    buffers: &mut [BufferOptions],
    sections: impl IntoIterator<Item = SectionArgument>,
) -> Result<()> {
    for SectionArgument { buffer, section } in sections {
        let Some(options) = buffers.iter_mut().find(|options| options.name == buffer) else {
            let names: Vec<&str> = buffers.iter().map(|options| options.name.as_str()).collect();
            return Err(Error::invalid(format!(
                "section \"{}\" is for the buffer \"{buffer}\", which is not requested: write buffer={}, or add \
                 --buffer name={buffer},size=2G",
                section.name,
                names.join(" or buffer=")
            )));
        };
        options.sections.push(section);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_parse_from_their_own_output() {
        for text in [
            "buffer=default,name=grid,size=4096,numa=0",
            "buffer=index,name=a,size=1",
            "buffer=x,name=b,size=2,numa=interleave:0,1/3,1",
            "buffer=x,name=c,size=2,gpu=0",
            "buffer=x,name=d,size=2,gpu=0,3,0",
        ] {
            assert_eq!(text.parse::<SectionArgument>().unwrap().to_string(), text);
        }
        let short: SectionArgument = "numa=0,1,name=grid,size=4G".parse().unwrap();
        assert_eq!(short.to_string(), "buffer=default,name=grid,size=4294967296,numa=0,1");
    }

    #[test]
    fn invalid_sections_are_rejected_with_the_reason() {
        for (text, words) in [
            ("size=1", "has no name="),
            ("name=a", "has no size="),
            ("name=a,size=0", "section \"a\" has size 0"),
            ("name=a b,size=1", "invalid name"),
            ("name=a,size=1,numa=near", "invalid placement \"near\""),
            ("name=a,size=1,pages=2m", "unexpected \"pages\""),
            ("name=a,size=1,gpu=x", "invalid gpu=\"x\": expected the numbers of GPUs"),
            ("name=a,size=1,gpu=", "invalid gpu=\"\""),
            ("name=a,gpu=0,,1,size=1", "invalid gpu=\"0,,1\": expected the numbers of GPUs"),
            ("name=a,size=1,gpu=0,", "invalid gpu=\"0,\""),
            ("name=a,size=1,gpu=+1", "invalid gpu=\"+1\""),
            ("name=a,size=1,gpu=0,+1", "invalid gpu=\"0,+1\""),
            ("name=a,size=1,gpu=00", "invalid gpu=\"00\""),
            ("name=a,size=1,gpu=0,x", "unexpected \"x\""),
            ("name=a,size=1,gpu=0,1,numa=0", "section \"a\" has gpu=0,1 and numa=0"),
            (
                "name=a,name=b,size=1",
                "\"name\" is given twice in section \"name=a,name=b,size=1\": give it once",
            ),
            ("name=a,size=1,numa=0,numa=1", "\"numa\" is given twice"),
            ("buffer=x,buffer=x,name=a,size=1", "\"buffer\" is given twice"),
        ] {
            let error = text.parse::<SectionArgument>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn sections_are_added_to_their_buffers() {
        let mut buffers = [BufferOptions::new(1), BufferOptions::new(1).name("index")];
        let parse = |text: &str| text.parse::<SectionArgument>().unwrap();
        add_sections(&mut buffers, [parse("name=a,size=1"), parse("name=b,size=1,buffer=index")]).unwrap();
        assert_eq!((buffers[0].sections.len(), buffers[1].sections[0].name.as_str()), (1, "b"));
        let error = add_sections(&mut buffers, [parse("name=c,size=1,buffer=none")]).unwrap_err().to_string();
        assert!(error.contains("write buffer=default or buffer=index"), "{error}");
    }
}
