//! Reads array files of NumPy: a matrix of little-endian doubles, or one pickled object. All others are refused.

const MAGIC: &[u8] = b"\x93NUMPY";

/// A matrix in row-major order.
pub(super) struct Matrix {
    pub rows: usize,
    pub columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    /// Reads a matrix of doubles.
    ///
    /// # Errors
    /// The first difference from such a file.
    pub fn read(bytes: &[u8]) -> Result<Matrix, String> {
        let (header, data) = split_header(bytes)?;
        if !header.contains("'descr': '<f8'") || !header.contains("'fortran_order': False") {
            return Err(format!("the array is not a row-major one of `<f8`: {header}"));
        }
        let (rows, columns) =
            shape(header).ok_or_else(|| format!("the array does not have two dimensions: {header}"))?;
        let expected = rows.checked_mul(columns).and_then(|count| count.checked_mul(size_of::<f64>()));
        if expected != Some(data.len()) {
            return Err(format!("{rows} x {columns} doubles do not take {} bytes", data.len()));
        }
        let (numbers, _) = data.as_chunks();
        Ok(Matrix { rows, columns, values: numbers.iter().map(|number| f64::from_le_bytes(*number)).collect() })
    }

    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    /// For an adjacency matrix with a 1 at `[i][j]` where `i` is before `j`: the stages before each stage.
    ///
    /// # Errors
    /// The matrix is not square, or has other numbers than 0 and 1.
    pub fn befores(&self) -> Result<Vec<Vec<usize>>, String> {
        if self.rows != self.columns {
            return Err(format!("the adjacency matrix is not square: it has {} x {} numbers", self.rows, self.columns));
        }
        if let Some(strange) = self.values.iter().find(|value| **value != 0.0 && **value != 1.0) {
            return Err(format!("the adjacency matrix has the number {strange}, which is neither 0 nor 1"));
        }
        let befores = |after: usize| (0..self.rows).filter(|before| self.at(*before, after) == 1.0).collect();
        Ok((0..self.columns).map(befores).collect())
    }
}

/// The pickled object of an array of objects without dimensions.
///
/// # Errors
/// The first difference from such a file.
pub(super) fn pickled(bytes: &[u8]) -> Result<&[u8], String> {
    let (header, data) = split_header(bytes)?;
    if header.contains("'descr': '|O'") && header.contains("'shape': ()") {
        Ok(data)
    } else {
        Err(format!("the array is not one pickled object: {header}"))
    }
}

/// The header's text and what follows it.
fn split_header(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let versioned = bytes.strip_prefix(MAGIC).ok_or("the file is not an array of NumPy")?;
    let (length, rest) = match versioned {
        [1, 0, low, high, rest @ ..] => (usize::from(u16::from_le_bytes([*low, *high])), rest),
        [2 | 3, 0, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err("the version of the array file is not known".to_owned()),
    };
    let (header, data) = rest.split_at_checked(length).ok_or("the array file ends in its header")?;
    let header = std::str::from_utf8(header).map_err(|_| "the header of the array file is not text")?;
    Ok((header.trim_end(), data))
}

/// The numbers of `'shape': (3, 4)`.
fn shape(header: &str) -> Option<(usize, usize)> {
    let (_, rest) = header.split_once("'shape': (")?;
    let (numbers, _) = rest.split_once(')')?;
    let (rows, columns) = numbers.split_once(',')?;
    Some((rows.trim().parse().ok()?, columns.trim().parse().ok()?))
}
