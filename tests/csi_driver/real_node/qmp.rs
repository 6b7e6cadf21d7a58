//! The monitors of the virtual machines that run, by which the simulated Harvester plugs disks.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::ObjectKey;
use serde_json::{Value, json};
use sim_harvester::disks::Machines;

/// A machine that does not answer its monitor by then never will.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// The monitor of one machine.
#[derive(Debug)]
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
    /// The block nodes, which are the devices too: names of volumes are too long for QEMU.
    disks: BTreeMap<String, String>,
    plugged: usize,
}

impl Monitor {
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        let mut this = Self { stream: BufReader::new(stream), disks: BTreeMap::new(), plugged: 0 };
        this.read()?;
        this.run("qmp_capabilities", &json!({}))?;
        Ok(this)
    }

    fn read(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Runs a command and answers what it returns.
    pub(crate) fn run(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.stream.get_mut(), "{line}")?;
        loop {
            let mut answer = self.read()?;
            if answer["error"].is_object() {
                return Err(io::Error::other(format!("QEMU's {command}: {}", answer["error"]["desc"])));
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    fn plug(&mut self, volume: &str, file: &Path) -> io::Result<()> {
        self.plugged += 1;
        let name = format!("disk{}", self.plugged);
        let file = json!({"driver": "file", "filename": file});
        self.run("blockdev-add", &json!({"driver": "raw", "node-name": name, "file": file}))?;
        // a device_id as KubeVirt gives, and no serial
        let identifier = format!("drive-ua-{volume}");
        let device = json!({"driver": "scsi-hd", "id": name, "drive": name, "bus": "scsi0.0",
            "device_id": identifier});
        self.run("device_add", &device)?;
        self.disks.insert(volume.to_owned(), name);
        Ok(())
    }

    fn pull(&mut self, volume: &str) -> io::Result<()> {
        let Some(name) = self.disks.remove(volume) else { return Ok(()) };
        self.run("device_del", &json!({"id": name}))?;
        loop {
            let event = self.read()?;
            if event["event"] == "DEVICE_DELETED" && event["data"]["device"] == *name {
                break;
            }
        }
        self.run("blockdev-del", &json!({"node-name": name})).map(drop)
    }

    fn grow(&mut self, volume: &str, size: u64) -> io::Result<()> {
        let Some(name) = self.disks.get(volume) else { return Ok(()) };
        let arguments = json!({"node-name": name, "size": size});
        self.run("block_resize", &arguments).map(drop)
    }
}

/// The monitors of all machines that run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Monitors(Arc<Mutex<BTreeMap<ObjectKey, Monitor>>>);

impl Monitors {
    pub(crate) fn insert(&self, vm: &ObjectKey, monitor: Monitor) {
        self.0.lock().unwrap().insert(vm.clone(), monitor);
    }

    /// Of a machine that is about to end.
    pub(crate) fn remove(&self, vm: &ObjectKey) {
        self.0.lock().unwrap().remove(vm);
    }
}

impl Machines for Monitors {
    fn plug(&mut self, vm: &ObjectKey, volume: &str, file: &Path) -> io::Result<()> {
        let mut all = self.0.lock().unwrap();
        let monitor = all.get_mut(vm).ok_or_else(|| io::Error::other(format!("machine {vm} is off")))?;
        monitor.plug(volume, file)
    }

    fn pull(&mut self, vm: &ObjectKey, volume: &str) -> io::Result<()> {
        self.0.lock().unwrap().get_mut(vm).map_or(Ok(()), |monitor| monitor.pull(volume))
    }

    fn grow(&mut self, vm: &ObjectKey, volume: &str, size: u64) -> io::Result<()> {
        self.0.lock().unwrap().get_mut(vm).map_or(Ok(()), |monitor| monitor.grow(volume, size))
    }
}
