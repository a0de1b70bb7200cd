//! Files as they are: plain, gzip or zstd, read as streams.

use super::error::WorkloadError;
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// No line of a trace is longer: one with the most tasks that a job may have is not.
const LONGEST_LINE: u64 = 512 << 20;

/// The files that a path means: itself, those below a directory with one of the endings, or those that match a
/// pattern; sorted. An ending counts before `.gz`, `.zst` or `.zstd`.
///
/// # Errors
/// When there are none, or a directory cannot be read.
pub(crate) fn files(path: &str, endings: &[&str]) -> Result<Vec<PathBuf>, WorkloadError> {
    let missing =
        |problem: String| WorkloadError::new(problem, "check the path; it may be a file, a directory or a pattern");
    if path.is_empty() {
        return Err(WorkloadError::new(
            "the path is missing",
            "write it behind the format, as `hawk:traces/YH1.tr.gz`",
        ));
    }
    let mut found = Vec::new();
    if Path::new(path).is_dir() {
        below(Path::new(path), endings, &mut found)?;
    } else if Path::new(path).exists() {
        found.push(PathBuf::from(path));
    } else {
        let pattern = glob::glob(path).map_err(|error| missing(format!("`{path}` is not a pattern: {}", error.msg)))?;
        found.extend(pattern.flatten().filter(|path| path.is_file()));
    }
    if found.is_empty() {
        let kind = if Path::new(path).is_dir() { format!(" named {}", endings.join(" or ")) } else { String::new() };
        return Err(missing(format!("there is no file{kind} at `{path}`")));
    }
    found.sort();
    Ok(found)
}

fn below(directory: &Path, endings: &[&str], found: &mut Vec<PathBuf>) -> Result<(), WorkloadError> {
    let wrong = |error: io::Error| WorkloadError::in_file(directory, error);
    for entry in fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            below(&path, endings, found)?;
        } else if endings.iter().any(|ending| plain_name(&path).ends_with(ending)) {
            found.push(path);
        }
    }
    Ok(())
}

/// The file's name without the ending of a compressed file.
pub(crate) fn plain_name(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let compressed = [".gz", ".zst", ".zstd"].into_iter().find_map(|ending| name.strip_suffix(ending));
    compressed.map_or(name.clone(), str::to_owned)
}

/// Opens a file and decompresses it according to its first bytes.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, WorkloadError> {
    let file = File::open(path).map_err(|error| WorkloadError::in_file(path, error))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(|error| unreadable(path, &error))?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(reader))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(BufReader::with_capacity(1 << 16, Frames::new(reader))),
        _ => Box::new(reader),
    })
}

/// Why the content of a file could not be read to its end.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> WorkloadError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        let problem = format!("{}: the compressed data ends too early", path.display());
        return WorkloadError::new(problem, "the file is truncated: fetch it again");
    }
    WorkloadError::in_file(path, error)
}

/// The whole content, decompressed.
///
/// # Errors
/// When it cannot be read to its end.
pub(crate) fn content(path: &Path) -> Result<Vec<u8>, WorkloadError> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    Ok(bytes)
}

/// The whole content as text.
///
/// # Errors
/// When it cannot be read to its end or is not UTF-8.
pub(crate) fn text(path: &Path) -> Result<String, WorkloadError> {
    String::from_utf8(content(path)?).map_err(|_| WorkloadError::in_file(path, "the file is not UTF-8"))
}

/// Hands out the lines of a file with their numbers, from 1, until told to stop. A line that is not UTF-8 is handed
/// out as a problem.
///
/// # Errors
/// When the file cannot be read to its end.
pub(crate) fn lines(
    path: &Path,
    mut on_line: impl FnMut(u64, Result<&str, &str>) -> ControlFlow<()>,
) -> Result<(), WorkloadError> {
    let mut reader = open(path)?;
    let mut buffer = Vec::new();
    for number in 1.. {
        buffer.clear();
        let mut limited = reader.as_mut().take(LONGEST_LINE);
        let length = limited.read_until(b'\n', &mut buffer).map_err(|error| unreadable(path, &error))?;
        if length as u64 == LONGEST_LINE {
            return Err(WorkloadError::in_file(path, format!("line {number} is longer than {LONGEST_LINE} bytes")));
        }
        let line = std::str::from_utf8(&buffer)
            .map_err(|_| "the line is not UTF-8")
            .map(|line| line.trim_end_matches(['\n', '\r']));
        if length == 0 || on_line(number, line).is_break() {
            break;
        }
    }
    Ok(())
}

/// The frames of a zstd file, one after the other.
struct Frames<R: BufRead> {
    source: R,
    decoder: FrameDecoder,
    inside_frame: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Frames<R> {
        Frames { source, decoder: FrameDecoder::new(), inside_frame: false }
    }

    fn begin_frame(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.inside_frame = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
            }
            Err(error) => return Err(self.damage(&error)),
        }
        Ok(())
    }

    /// Damage at the end of the data is an end that came too early.
    fn damage(&mut self, error: &FrameDecoderError) -> io::Error {
        match self.source.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof.into(),
            _ => io::Error::new(io::ErrorKind::InvalidData, format!("the zstd data is damaged: {error}")),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decoder.can_collect() > 0 || buffer.is_empty() {
                return self.decoder.read(buffer);
            }
            if self.inside_frame && !self.decoder.is_finished() {
                let some = BlockDecodingStrategy::UptoBytes(buffer.len());
                if let Err(error) = self.decoder.decode_blocks(&mut self.source, some) {
                    return Err(self.damage(&error));
                }
            } else if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            } else {
                self.begin_frame()?;
            }
        }
    }
}
