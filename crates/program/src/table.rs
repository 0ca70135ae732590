//! Tables of text for people.

use std::array;

/// Columns of a terminal.
pub const WIDTH: usize = 80;

/// Characters between two columns.
const GAP: usize = 2;

/// A table under a head. Columns are as wide as their longest cell.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    aligned(&headed(head, rows))
}

/// The same without a head.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    lines(rows, widths(rows))
}

/// A table whose lines fit [`WIDTH`]: columns have maximum widths, and the last one gets the rest of the line.
/// Longer cells keep their head and their tail.
pub fn fitted<const N: usize>(head: [&str; N], limits: [usize; N], rows: &[[String; N]]) -> String {
    let rows = headed(head, rows);
    let mut widths = widths(&rows);
    for (width, limit) in widths.iter_mut().zip(limits) {
        *width = limit.min(*width);
    }
    if let Some((last, others)) = widths.split_last_mut() {
        let used: usize = others.iter().map(|width| width + GAP).sum();
        *last = WIDTH.saturating_sub(used).min(*last);
    }
    lines(&rows, widths)
}

fn headed<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> Vec<[String; N]> {
    [&[head.map(str::to_owned)], rows].concat()
}

fn widths<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    let longest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    array::from_fn(|column| longest(column).unwrap_or_default())
}

fn lines<const N: usize>(rows: &[[String; N]], widths: [usize; N]) -> String {
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{:width$}{:GAP$}", shortened(cell, width), ""))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The head and the tail of a text that is too long: names of images and pods often differ in the tail.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let half = width.saturating_sub(1) / 2;
    let head: String = text.chars().take(width.saturating_sub(1) - half).collect();
    let tail: String = text.chars().skip(length - half).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[[&str; 2]]) -> Vec<[String; 2]> {
        cells.iter().map(|row| row.map(str::to_owned)).collect()
    }

    #[test]
    fn columns_are_as_wide_as_longest_cell() {
        assert_eq!(
            table(["NAME", "A"], &rows(&[["ü", "1"], ["longer", ""]])),
            "NAME    A\nü       1\nlonger\n"
        );
        assert_eq!(aligned(&rows(&[["a", "b"], ["ccc", "d"]])), "a    b\nccc  d\n");
        assert_eq!(aligned::<2>(&[]), "");
    }

    #[test]
    fn fitted_table_shortens_long_cells_in_the_middle() {
        let long = "p".repeat(100) + "z";
        let text = fitted(
            ["NAME", "A"],
            [5, usize::MAX],
            &rows(&[["abcdefgh", &long], ["b", "c"]]),
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "NAME   A");
        assert!(
            lines[1].starts_with("ab…gh  ppp") && lines[1].ends_with("ppz"),
            "{text}"
        );
        assert_eq!(lines[1].chars().count(), WIDTH, "{text}");
        assert_eq!(lines[2], "b      c");
    }
}
