//! A group whose exchange of data is slow.

use std::time::Duration;

use hostbuf::Result;
use hostbuf::job::Collective;

/// The length from which on a broadcast is slow. Those of results are shorter.
const LONG_BYTES: usize = 4096;

/// A group in which each long broadcast takes some time more. Its parts are slow as well.
pub struct SlowGroup {
    pub group: Box<dyn Collective>,
    pub delay: Duration,
}

impl Collective for SlowGroup {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.group.all_gather(mine, all)
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        if bytes.len() >= LONG_BYTES {
            std::thread::sleep(self.delay);
        }
        self.group.broadcast(bytes, root)
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let group = self.group.split(color)?;
        Ok(Box::new(SlowGroup { group, delay: self.delay }))
    }
}
