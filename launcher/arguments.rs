//! Arguments that several subcommands share.

use hostbuf::internal::check_all;
use hostbuf::{Bytes, Error, Options, Pages, Result};

/// Which buffers a job gets.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct BufferArguments {
    /// Size of the buffer on each host: 4096, 64K, 512M, 2G, 1.5T
    #[arg(long)]
    size: Option<Bytes>,
    /// Pages: auto (the best that is there), 4k, thp, 2m, 1g
    #[arg(long, value_parser = |text: &str| text.parse::<Pages>())]
    pages: Option<Pages>,
    /// Take pages at the first touch, not before the ranks run
    #[arg(long)]
    lazy: bool,
    /// Let the contents go into core files
    #[arg(long)]
    dump: bool,
    /// One more buffer: name=index,size=2G,pages=2m,lazy,dump (again for each)
    #[arg(long, value_name = "SPEC", value_parser = |text: &str| text.parse::<Options>())]
    buffer: Vec<Options>,
}

impl BufferArguments {
    /// The buffers asked for.
    ///
    /// # Errors
    /// [`Error::Invalid`] when none is, or one makes no sense.
    pub(crate) fn options(&self) -> Result<Vec<Options>> {
        let mut list = Vec::new();
        match self.size {
            Some(Bytes(size)) => {
                let mut options = Options::new(size).pages(self.pages.unwrap_or_default());
                (options.lazy, options.dump) = (self.lazy, self.dump);
                list.push(options);
            }
            None if self.buffer.is_empty() => {
                return Err(Error::Invalid {
                    what: "no buffer is asked for: give --size 2G or --buffer name=x,size=2G".into(),
                });
            }
            None if self.pages.is_some() || self.lazy || self.dump => {
                return Err(Error::Invalid {
                    what: "--pages, --lazy and --dump belong to --size; a --buffer has its own".into(),
                });
            }
            None => {}
        }
        list.extend(self.buffer.iter().cloned());
        check_all(&list)?;
        Ok(list)
    }
}
