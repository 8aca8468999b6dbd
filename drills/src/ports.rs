//! Ports that stay free from the look at them to the start of the program that gets them, and over its restarts.
//!
//! The kernel gives the ports of its ephemeral range to any outgoing connection, so a port that was free there a moment
//! ago may be taken at the next. Ours are outside of that range, and each test process has a block of them to itself.
//! This file uses the standard library alone: the gateway's tests include it too.

use std::{
    fs::{self, File},
    io::{Error, Result},
    net::TcpListener,
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
};

const FIRST: u16 = 16_000;
const BLOCK: u16 = 1_000;
const BLOCKS: u16 = 16;

/// The block of this process: its first port, and the file whose lock says so until the process ends.
struct Block {
    first: u16,
    _lock: File,
}

/// A port of 127.0.0.1 that nothing listens on and that nobody else of ours is given.
pub fn free_port() -> Result<u16> {
    static OWN: OnceLock<Block> = OnceLock::new();
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let own = match OWN.get() {
        Some(own) => own,
        None => {
            let claimed = claim()?;
            OWN.get_or_init(|| claimed)
        }
    };
    for _ in 0..BLOCK {
        let port = own.first + GIVEN.fetch_add(1, Ordering::Relaxed) % BLOCK;
        // A program that outlived its test may still listen.
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::other(format!(
        "no free port in {}..{}",
        own.first,
        own.first + BLOCK
    )))
}

fn claim() -> Result<Block> {
    let dir = std::env::temp_dir().join("rindle-test-ports");
    fs::create_dir_all(&dir)?;
    for first in (0..BLOCKS).map(|n| FIRST + n * BLOCK) {
        let lock = open(&dir, first)?;
        if lock.try_lock().is_ok() {
            return Ok(Block { first, _lock: lock });
        }
    }
    Err(Error::other(format!(
        "{BLOCKS} test processes hold every block of ports; see {}",
        dir.display()
    )))
}

fn open(dir: &Path, first: u16) -> Result<File> {
    let path = dir.join(first.to_string());
    File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path)
}
