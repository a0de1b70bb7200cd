//! Reads files as streams: plain, gzip or zstd.

use super::error::WorkloadError;
use crate::glob;
use crate::text::without_mark;
use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The maximum length of a line in bytes. A job with the maximum number of tasks fits in one.
const LONGEST_LINE: u64 = 512 << 20;

/// The files that a path selects, sorted: the file itself, all files below a directory with one of the endings, or all
/// files that match a pattern. `.gz`, `.zst` and `.zstd` at the end of a name are ignored.
///
/// # Errors
/// There are no such files, or a directory cannot be read.
pub(crate) fn files(path: &str, endings: &[&str]) -> Result<Vec<PathBuf>, WorkloadError> {
    let missing =
        |problem: String| WorkloadError::new(problem, "check the path; it may be a file, a directory or a pattern");
    if path.is_empty() {
        return Err(WorkloadError::new(
            "the path is missing",
            "write it after the format, such as `hawk:traces/YH1.tr.gz`",
        ));
    }
    let mut found = Vec::new();
    if Path::new(path).is_dir() {
        below(Path::new(path), endings, &mut found)?;
    } else if Path::new(path).exists() {
        found.push(PathBuf::from(path));
    } else {
        let matching = glob::expand(path.as_bytes(), Path::new("")).map_err(|wrong| missing(wrong.problem))?;
        found.extend(
            matching.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).filter(|path| path.is_file()),
        );
    }
    if found.is_empty() {
        if !Path::new(path).is_dir() {
            return Err(missing(format!("file `{path}` not found")));
        }
        let mut others = Vec::new();
        below(Path::new(path), &[""], &mut others)?;
        let problem = format!("no file in `{path}` has a name that ends in {}", endings.join(" or "));
        return Err(match others.iter().min() {
            Some(other) => WorkloadError::new(problem, format!("name the file itself, such as {}", other.display())),
            None => missing(problem),
        });
    }
    found.sort();
    Ok(found)
}

fn below(directory: &Path, endings: &[&str], found: &mut Vec<PathBuf>) -> Result<(), WorkloadError> {
    let wrong = |error: io::Error| unreadable(directory, &error);
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

/// The file's name without `.gz`, `.zst` or `.zstd`.
pub(crate) fn plain_name(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let compressed = [".gz", ".zst", ".zstd"].into_iter().find_map(|ending| name.strip_suffix(ending));
    compressed.map_or(name.clone(), str::to_owned)
}

/// Opens a file and decompresses it. The compression is detected by the first bytes.
///
/// # Errors
/// The file cannot be opened.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, WorkloadError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(|error| unreadable(path, &error))?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(1 << 16, Members::new(reader))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(BufReader::with_capacity(1 << 16, Frames::new(reader))),
        _ => Box::new(reader),
    })
}

/// Like [`open`], for a text file. Removes its byte order mark.
///
/// # Errors
/// The file cannot be opened, or its first bytes are those of another encoding than UTF-8.
pub(crate) fn open_text(path: &Path) -> Result<Box<dyn BufRead>, WorkloadError> {
    let mut content = open(path)?;
    let start = content.fill_buf().map_err(|error| unreadable(path, &error))?;
    let start = &start[..start.len().min(4)];
    let text = without_mark(start)
        .map_err(|wrong| WorkloadError::new(format!("{}: {}", path.display(), wrong.problem), wrong.remedy))?;
    let mark = start.len() - text.len();
    content.consume(mark);
    Ok(content)
}

/// The error for a file that could not be opened or not be read to its end.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> WorkloadError {
    let path = path.display();
    let wrong = |problem: &str, remedy: &str| WorkloadError::new(format!("{path}: {problem}"), remedy);
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            wrong("the compressed data ends too early", "fetch the file again: it is truncated")
        }
        io::ErrorKind::NotFound => wrong("file not found", "check the path"),
        io::ErrorKind::PermissionDenied => wrong("permission denied", "change the permissions of the file"),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            wrong(&error.to_string(), "fetch the file again: it is damaged")
        }
        io::ErrorKind::IsADirectory => wrong("not a file but a directory", "name a file"),
        _ => wrong(&error.to_string(), "check the path"),
    }
}

/// Reads the whole content, decompressed.
///
/// # Errors
/// The file cannot be read to its end.
pub(crate) fn content(path: &Path) -> Result<Vec<u8>, WorkloadError> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    Ok(bytes)
}

/// Reads the whole content as text.
///
/// # Errors
/// The file cannot be read to its end, or is not UTF-8.
pub(crate) fn text(path: &Path) -> Result<String, WorkloadError> {
    let mut bytes = Vec::new();
    open_text(path)?.read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    String::from_utf8(bytes).map_err(|_| WorkloadError::in_file(path, "the file is not UTF-8"))
}

/// Calls `on_line` with the number (from 1) and the text of each line, until it returns `Break`. A line that is not
/// UTF-8 is passed as an error.
///
/// # Errors
/// The file cannot be read to its end.
pub(crate) fn lines(
    path: &Path,
    mut on_line: impl FnMut(u64, Result<&str, &str>) -> ControlFlow<()>,
) -> Result<(), WorkloadError> {
    let mut reader = open_text(path)?;
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

/// The members of a gzip file, one after the other.
struct Members<R: BufRead> {
    /// `None` only while the next member is started.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    fn new(source: R) -> Members<R> {
        Members { member: Some(GzDecoder::new(source)) }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match member.get_mut().fill_buf()? {
                [] => break,
                [0x1f, ..] => self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner())),
                _ => {
                    let problem = "the gzip data is followed by other data";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
                }
            }
        }
        Ok(0)
    }
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

    fn start_frame(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.inside_frame = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
            }
            Err(error) => return Err(self.damage(&error)),
        }
        Ok(())
    }

    /// The error for damaged data. Damage at the end of the file means that the file is truncated.
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
                self.start_frame()?;
            }
        }
    }
}
