//! The choice of a device if the options name none.

use std::fs;
use std::path::Path;

const DEVICES: &str = "/sys/class/infiniband";

/// Returns the first device of `names` that has an active port and is on the NUMA node `node`, or
/// the first with an active port if none is on that node. Returns `None` if no port is known to be
/// active.
pub(crate) fn nearest(names: &[String], node: Option<u32>) -> Option<String> {
    nearest_in(Path::new(DEVICES), names, node)
}

fn nearest_in(devices: &Path, names: &[String], node: Option<u32>) -> Option<String> {
    let up: Vec<&String> = names.iter().filter(|name| is_up(&devices.join(name))).collect();
    let near = |name: &&&String| node.is_some() && node_of(&devices.join(name)) == node;
    up.iter().find(near).or(up.first()).map(|name| (*name).clone())
}

/// Returns whether one of its ports is active.
fn is_up(device: &Path) -> bool {
    let ports = fs::read_dir(device.join("ports")).into_iter().flatten().flatten();
    let active = |port: fs::DirEntry| {
        // The number of the state and its name: `4: ACTIVE`.
        fs::read_to_string(port.path().join("state")).is_ok_and(|state| state.trim().ends_with("ACTIVE"))
    };
    ports.into_iter().any(active)
}

fn node_of(device: &Path) -> Option<u32> {
    // The value is -1 if the firmware does not report the node.
    fs::read_to_string(device.join("device/numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_active_device_is_chosen() {
        let root = std::env::temp_dir().join(format!("hostbuf-device-selection-{}", std::process::id()));
        let device = |name: &str, state: &str, node: &str| {
            let at = root.join(name);
            for (file, text) in [("ports/1/state", state), ("device/numa_node", node)] {
                let file = at.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
        };
        device("mlx5_0", "1: DOWN\n", "1\n");
        device("mlx5_1", "4: ACTIVE\n", "0\n");
        device("mlx5_2", "4: ACTIVE\n", "1\n");
        device("rxe0", "4: ACTIVE\n", "-1\n");
        let choose = |names: &[&str], node| {
            let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
            nearest_in(&root, &names, node)
        };
        let all = ["mlx5_0", "mlx5_1", "mlx5_2", "rxe0"];
        let seen = [
            choose(&all, Some(1)),
            choose(&all, Some(0)),
            choose(&all, Some(7)),
            choose(&all, None),
            choose(&["mlx5_0"], Some(1)),
            choose(&["rxe0", "missing"], Some(0)),
            choose(&[], None),
        ];
        fs::remove_dir_all(&root).unwrap();
        let expected =
            [Some("mlx5_2"), Some("mlx5_1"), Some("mlx5_1"), Some("mlx5_1"), None, Some("rxe0"), None];
        assert_eq!(
            seen.map(Option::unwrap_or_default),
            expected.map(|name| name.unwrap_or_default().to_owned())
        );
    }
}
