//! Where the bytes come from: a file or a stream, compressed or not.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, ErrorDetail, Result};

const BUFFER: usize = 256 * 1024;

/// What to import: a file, which can be read again, or a stream, which cannot. Both may be compressed with
/// gzip or zstd, which shows in their first bytes.
pub enum Input {
    /// A file by its path.
    File(PathBuf),
    /// Anything else, such as standard input.
    Stream(Box<dyn Read + Send>),
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Stream(_) => f.debug_tuple("Stream").finish(),
        }
    }
}

/// An opened input: uncompressed bytes, and what is known about it.
pub(super) struct Opened {
    pub(super) reader: Box<dyn BufRead + Send>,
    /// Compressed bytes that were read.
    pub(super) read: Arc<AtomicU64>,
    /// Compressed bytes in all, of a file.
    pub(super) size: Option<u64>,
    /// The SHA-256 of a file.
    pub(super) hash: Option<[u8; 32]>,
    /// The SHA-256 of a stream, as far as it was read.
    running: Arc<Mutex<Sha256>>,
    /// A file that is not compressed.
    seekable: Option<File>,
}

impl Opened {
    pub(super) fn open(input: Input) -> Result<Self> {
        let read = Arc::new(AtomicU64::new(0));
        let running = Arc::new(Mutex::new(Sha256::new()));
        let (raw, size, hash, mut seekable): (Box<dyn Read + Send>, _, _, _) = match input {
            Input::Stream(raw) => (raw, None, None, None),
            Input::File(path) => {
                let unreadable = |error: io::Error| {
                    Error::Invalid(ErrorDetail::new(
                        "22023",
                        format!("the file {} cannot be read: {error}", path.display()),
                        "Look at its path and its permissions.",
                    ))
                };
                let mut file = File::open(&path).map_err(unreadable)?;
                let about = file.metadata().map_err(unreadable)?;
                if about.is_file() {
                    let hash = hash_of(&mut file).map_err(unreadable)?;
                    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
                    let again = file.try_clone().map_err(unreadable)?;
                    (Box::new(file), Some(about.len()), Some(hash), Some(again))
                } else {
                    (Box::new(file), None, None, None)
                }
            }
        };
        let counted = Counted {
            raw,
            read: read.clone(),
            running: hash.is_none().then(|| running.clone()),
        };
        let mut reader = BufReader::with_capacity(BUFFER, counted);
        let start = reader.fill_buf().map_err(Error::work)?;
        let reader: Box<dyn BufRead + Send> = if start.starts_with(&[0x1f, 0x8b]) {
            seekable = None;
            let plain = Damaged(MultiGzDecoder::new(reader));
            Box::new(BufReader::with_capacity(BUFFER, plain))
        } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            seekable = None;
            let plain = Damaged(Frames(Some(Frame::Between(reader))));
            Box::new(BufReader::with_capacity(BUFFER, plain))
        } else {
            Box::new(reader)
        };
        Ok(Self {
            reader,
            read,
            size,
            hash,
            running,
            seekable,
        })
    }

    /// Goes from the uncompressed byte `from`, which is the next one, to `to`.
    pub(super) fn skip(&mut self, from: u64, to: u64) -> io::Result<()> {
        if let Some(mut file) = self.seekable.take() {
            file.seek(SeekFrom::Start(to))?;
            self.read.store(to, Ordering::Relaxed);
            let counted = Counted {
                raw: Box::new(file),
                read: self.read.clone(),
                running: None,
            };
            self.reader = Box::new(BufReader::with_capacity(BUFFER, counted));
            return Ok(());
        }
        let wanted = to.saturating_sub(from);
        let skipped = io::copy(&mut (&mut self.reader).take(wanted), &mut io::sink())?;
        if skipped < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The SHA-256 of a stream that was read to its end.
    pub(super) fn running_hash(&self) -> [u8; 32] {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.clone().finalize().into()
    }
}

fn hash_of(file: &mut File) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Counts what is read, and hashes it where it can be read only once.
struct Counted {
    raw: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
    running: Option<Arc<Mutex<Sha256>>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.raw.read(buffer)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        if let Some(running) = &self.running {
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            running.update(&buffer[..n]);
        }
        Ok(n)
    }
}

/// Whatever goes wrong in here is the compressed data's fault.
struct Damaged<R>(R);

impl<R: Read> Read for Damaged<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer);
        read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// The frames of a zstd file, one after the other.
struct Frames<R: BufRead>(Option<Frame<R>>);

enum Frame<R: BufRead> {
    Between(R),
    In(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.take() {
                None => return Ok(0),
                Some(Frame::Between(mut raw)) => {
                    if !raw.fill_buf()?.is_empty() {
                        let frame = StreamingDecoder::new(raw).map_err(io::Error::other)?;
                        self.0 = Some(Frame::In(Box::new(frame)));
                    }
                }
                Some(Frame::In(mut frame)) => match frame.read(buffer)? {
                    0 if !buffer.is_empty() => {
                        self.0 = Some(Frame::Between(frame.into_inner()));
                    }
                    n => {
                        self.0 = Some(Frame::In(frame));
                        return Ok(n);
                    }
                },
            }
        }
    }
}
