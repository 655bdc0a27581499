//! The addresses and sizes of the buffers in the environment.

use hostbuf_protocol::environment::{
    ENV_ADDRESS, ENV_ADDRESS_PADDING, ENV_SIZE, ENV_SIZE_PADDING, is_variable_of,
};
use hostbuf_protocol::range::{AgreedRange, Name};

use crate::environment::Environment;
use crate::text::ShortText;

/// Writes the addresses and sizes of the buffers in `range` into the environment, in place of those
/// of a parent; without a range there are none.
pub(crate) fn publish(environment: &mut Environment, range: Option<&AgreedRange<'_>>) {
    environment.rename_all(ENV_ADDRESS, ENV_ADDRESS_PADDING);
    environment.rename_all(ENV_SIZE, ENV_SIZE_PADDING);
    let Some(range) = range else { return };
    for (index, buffer) in range.buffers.iter().enumerate() {
        let address = ShortText::new(format_args!("{:#018x}", range.address + buffer.part.offset));
        let size = ShortText::new(format_args!("{}", buffer.part.length));
        for (room, variable, value) in
            [(ENV_ADDRESS_PADDING, ENV_ADDRESS, &address), (ENV_SIZE_PADDING, ENV_SIZE, &size)]
        {
            if index == 0 {
                set(environment, room, variable, None, value);
            }
            set(environment, room, variable, Some(&buffer.name), value);
        }
    }
}

/// Writes a value into the variable `room`, or that of a buffer, and renames it to `variable`. A
/// variable without room is left as it is.
fn set(environment: &mut Environment, room: &str, variable: &str, buffer: Option<&Name>, value: &ShortText) {
    let is_it = |name: &[u8]| match buffer {
        None => name == room.as_bytes(),
        Some(buffer) => is_variable_of(name, room, buffer.bytes()),
    };
    if environment.write_matching(is_it, value.bytes()) {
        environment.rename_matching(room, variable, is_it);
    }
}
