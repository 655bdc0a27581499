//! The variables in which `hostbuf exec` reserves room for the addresses and sizes of the buffers.

use hostbuf_protocol::environment::{
    ENV_ADDRESS, ENV_ADDRESS_PADDING, ENV_SIZE, ENV_SIZE_PADDING, PADDING, variable_byte,
};

/// Returns the variables with room for the first buffer and for each buffer of these names.
pub(crate) fn variables<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(String, &'static str)> {
    let mut list = vec![(ENV_ADDRESS_PADDING.to_owned(), PADDING), (ENV_SIZE_PADDING.to_owned(), PADDING)];
    for name in names {
        let name: String = name.bytes().map(variable_byte).map(char::from).collect();
        list.extend(
            [ENV_ADDRESS_PADDING, ENV_SIZE_PADDING].map(|padding| (format!("{padding}_{name}"), PADDING)),
        );
    }
    list
}

/// Returns whether `variable` contains an address or a size, or room for one.
pub(crate) fn is_address_or_size(variable: &str) -> bool {
    [ENV_ADDRESS, ENV_ADDRESS_PADDING, ENV_SIZE, ENV_SIZE_PADDING]
        .iter()
        .any(|name| variable.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_has_room_for_its_address_and_its_size() {
        let list = variables(["index", "a-b.c"]);
        let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "HOSTBUF_PADDING",
                "HOSTBUF_PAD2",
                "HOSTBUF_PADDING_index",
                "HOSTBUF_PAD2_index",
                "HOSTBUF_PADDING_a_b_c",
                "HOSTBUF_PAD2_a_b_c"
            ]
        );
        assert!(names.iter().all(|name| is_address_or_size(name)) && is_address_or_size("HOSTBUF_SIZE_x"));
        assert!(!is_address_or_size("HOSTBUF_SIZES") && !is_address_or_size("HOSTBUF_JOB"));
    }
}
