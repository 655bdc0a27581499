//! Tables of aligned columns.

use crate::printable::printable;

/// Aligns columns, two spaces apart. Characters that are not printable are escaped: a cell may
/// contain a name from another host.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let printable_row = |row: &Vec<String>| row.iter().map(|cell| printable(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(printable_row).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("  {text:<width$}"));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let row = |cells: &[&str]| cells.iter().map(|&c| c.to_owned()).collect::<Vec<_>>();
        let text = align(&[row(&["A", "BB"]), row(&["long", "x"])]);
        assert_eq!(text, "  A     BB\n  long  x\n");
    }

    #[test]
    fn cells_do_not_control_the_terminal() {
        let text = align(&[vec!["\u{1b}[2J".into(), "b".into()], vec!["a\nb".into(), "c".into()]]);
        assert_eq!(text, "  \\u{1b}[2J  b\n  a\\nb       c\n");
    }
}
