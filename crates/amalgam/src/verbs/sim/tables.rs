//! The jobs and the windows of a run as tables for other programs.

use crate::failure::{Failure, Result};
use amalgam_cli::files::{cannot_write, create};
use amalgam_daemon::durable::Draft;
use amalgam_sim::Outcome;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RecordWriter;
use serde::Serialize;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// `jobs-PRESET.csv` and `windows-PRESET.csv`.
pub fn write_csv(directory: &Path, run: &Outcome) -> Result<()> {
    make(directory)?;
    let preset = &run.results.preset;
    write_csv_table(&directory.join(format!("jobs-{preset}.csv")), &run.jobs)?;
    write_csv_table(&directory.join(format!("windows-{preset}.csv")), &run.windows)
}

/// `jobs-PRESET.parquet` and `windows-PRESET.parquet`.
pub fn write_parquet(directory: &Path, run: &Outcome) -> Result<()> {
    make(directory)?;
    let preset = &run.results.preset;
    write_parquet_table(&directory.join(format!("jobs-{preset}.parquet")), &run.jobs[..])?;
    write_parquet_table(&directory.join(format!("windows-{preset}.parquet")), &run.windows[..])
}

/// Creates the directory before the simulation, so that an unwritable place costs no time.
pub fn make(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::new(
            format!("cannot write tables to {}: it is not a directory", directory.display()),
            "name a directory; it is made if there is none",
        ),
        _ => cannot_write(directory, &error),
    })
}

fn write_csv_table<T: Serialize>(path: &Path, rows: &[T]) -> Result<()> {
    let mut table = csv::Writer::from_writer(create(path)?);
    let wrong = |error: csv::Error| cannot_write(path, &error.into());
    rows.iter().try_for_each(|row| table.serialize(row)).map_err(wrong)?;
    let file = table.into_inner().map_err(|error| cannot_write(path, error.error()))?;
    file.finish().map_err(|error| cannot_write(path, &error))
}

fn write_parquet_table<T>(path: &Path, rows: &[T]) -> Result<()>
where
    for<'a> &'a [T]: RecordWriter<T>,
{
    let mut file = create(path)?;
    write_rows(&mut file, rows).map_err(|error| cannot_write(path, &io::Error::other(error)))?;
    file.finish().map_err(|error| cannot_write(path, &error))
}

fn write_rows<T>(file: &mut Draft, rows: &[T]) -> std::result::Result<(), ParquetError>
where
    for<'a> &'a [T]: RecordWriter<T>,
{
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut table = SerializedFileWriter::new(file, rows.schema()?, Arc::new(properties))?;
    let mut group = table.next_row_group()?;
    rows.write_to_row_group(&mut group)?;
    group.close()?;
    table.close().map(|_| ())
}
