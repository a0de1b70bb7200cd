//! Files as they are: plain, gzip or zstd, read as streams.

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
        let matching = glob::expand(path.as_bytes(), Path::new("")).map_err(|wrong| missing(wrong.problem))?;
        found.extend(
            matching.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).filter(|path| path.is_file()),
        );
    }
    if found.is_empty() {
        if !Path::new(path).is_dir() {
            return Err(missing(format!("there is no file at `{path}`")));
        }
        let mut others = Vec::new();
        below(Path::new(path), &[""], &mut others)?;
        let problem = format!("there is no file named {} at `{path}`", endings.join(" or "));
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
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(|error| unreadable(path, &error))?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(1 << 16, Members::new(reader))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(BufReader::with_capacity(1 << 16, Frames::new(reader))),
        _ => Box::new(reader),
    })
}

/// The same, of a file that is a text: without a mark of its encoding.
///
/// # Errors
/// When it cannot be opened, or is no UTF-8 by its first bytes.
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

/// Why a file could not be opened, or its content not be read to its end.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> WorkloadError {
    let path = path.display();
    let wrong = |problem: &str, remedy: &str| WorkloadError::new(format!("{path}: {problem}"), remedy);
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            wrong("the compressed data ends too early", "the file is truncated: fetch it again")
        }
        io::ErrorKind::NotFound => wrong("there is no such file", "check the path"),
        io::ErrorKind::PermissionDenied => wrong("permission denied", "make it readable for yourself"),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            wrong(&error.to_string(), "the file is damaged: fetch it again")
        }
        io::ErrorKind::IsADirectory => wrong("it is a directory", "name a file"),
        _ => wrong(&error.to_string(), "check the path"),
    }
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
    let mut bytes = Vec::new();
    open_text(path)?.read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    String::from_utf8(bytes).map_err(|_| WorkloadError::in_file(path, "the file is not UTF-8"))
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
    /// `None` only while one follows the other.
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
                    let problem = "after the end of the gzip data follows something else";
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
