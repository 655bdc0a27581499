//! The camera, as its consumer sees it.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::contained_command::contained_command;
use crate::frame_carrier::{FrameCarrier, Touched};

/// The process of the camera, which ends with this object.
#[derive(Debug)]
pub(crate) struct CameraProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl CameraProcess {
    /// Starts the camera of a kind, `contained` in a container, and waits until it has connected.
    pub(crate) fn start(folder: &Path, kind: &str) -> Result<CameraProcess, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = match kind {
            "contained" => contained_command(&own, folder),
            _ => Command::new(own),
        };
        command.arg("camera").arg(folder).arg(kind);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("starting {command:?}: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let Some(output) = output else { return Err("no pipes".into()) };
        let mut camera = CameraProcess { child, input, output };
        match camera.read()? {
            b'r' => Ok(camera),
            other => Err(format!("the camera says {other}")),
        }
    }

    /// Requests a frame.
    pub(crate) fn request(&mut self, carrier: FrameCarrier, touched: Touched) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the camera is ending")?;
        let request = [carrier.letter(), touched.letter()];
        input.write_all(&request).map_err(|error| format!("the camera has ended: {error}"))
    }

    /// Ends the camera. Returns whether it had loaded the driver of CUDA.
    pub(crate) fn end(mut self) -> Result<bool, String> {
        self.input = None;
        Ok(self.read()? == b'y')
    }

    fn read(&mut self) -> Result<u8, String> {
        let mut byte = [0];
        self.output.read_exact(&mut byte).map_err(|error| format!("the camera has ended: {error}"))?;
        Ok(byte[0])
    }
}

impl Drop for CameraProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
