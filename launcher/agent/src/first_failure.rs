//! The error that ends a job.

use hostbuf::JobError;

/// The first error of a job. Later errors are usually its consequences, so they are dropped.
#[derive(Clone, Debug, Default)]
pub struct FirstFailure(Option<JobError>);

impl FirstFailure {
    /// Records an error, and returns whether it is the first one.
    pub fn record(&mut self, error: JobError) -> bool {
        let is_first = self.0.is_none();
        self.0.get_or_insert(error);
        is_first
    }

    /// Returns the first error.
    #[must_use]
    pub fn get(&self) -> Option<&JobError> {
        self.0.as_ref()
    }

    /// Returns whether there is an error.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::ErrorClass;

    #[test]
    fn the_first_error_stays() {
        let mut failure = FirstFailure::default();
        assert!(!failure.is_some());
        assert!(failure.record(JobError::new(ErrorClass::NoSpace, "the cause")));
        assert!(!failure.record(JobError::new(ErrorClass::Lost, "a consequence")));
        assert_eq!(failure.get().map(|error| error.class), Some(ErrorClass::NoSpace));
    }
}
