//! The reason why a rank cannot hold an address.

/// The reason why a rank cannot hold a candidate for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankRefusal {
    /// The rank in the job.
    pub(super) rank: usize,
    /// The description of the mapping or of the limit.
    pub(super) why: String,
    /// True if the rank cannot hold any other address either.
    pub(super) is_final: bool,
}

impl RankRefusal {
    /// Returns the cause if there is no common address: the first final refusal, or else the first
    /// one.
    pub(super) fn cause(first: Option<RankRefusal>, second: Option<RankRefusal>) -> Option<RankRefusal> {
        let is_final = |refusal: &Option<RankRefusal>| refusal.as_ref().is_some_and(|one| one.is_final);
        if is_final(&second) && !is_final(&first) { second } else { first.or(second) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_refusal_is_the_cause() {
        let refusal = |rank, is_final| Some(RankRefusal { rank, why: String::new(), is_final });
        for (first, second, cause) in [
            (refusal(0, false), refusal(1, false), 0),
            (refusal(0, false), refusal(1, true), 1),
            (refusal(0, true), refusal(1, true), 0),
            (None, refusal(1, false), 1),
        ] {
            assert_eq!(RankRefusal::cause(first, second).map(|refusal| refusal.rank), Some(cause));
        }
    }
}
