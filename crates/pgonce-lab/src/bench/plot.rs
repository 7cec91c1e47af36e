//! The ratios of a report as a picture.

use std::fmt::Write as _;

use super::report::{Budget, Line};

const WIDTH: usize = 900;
const ROW: usize = 22;
/// Where the bars begin.
const LEFT: usize = 520;
/// The longest bar, and the ratio that it stands for: longer ones are cut.
const LONGEST: usize = 300;
const MOST: f64 = 2.5;

/// A picture of these lines: a bar for each, and a mark where its budget is.
pub(super) fn svg(title: &str, lines: &[&Line]) -> String {
    let height = (lines.len() + 3) * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    let at = |ratio: f64| (ratio.clamp(0.0, MOST) / MOST * LONGEST as f64).round();
    let one = LEFT as f64 + at(1.0);
    for (n, line) in lines.iter().enumerate() {
        let y = (n + 2) * ROW;
        let color = match line.met() {
            Some(false) => "#c0392b",
            Some(true) => "#27ae60",
            None => "#7f8c8d",
        };
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"14\" fill=\"{color}\"/>\n\
             <text x=\"{}\" y=\"{}\">{:.2}</text>\n",
            LEFT - 8,
            y + 11,
            escaped(line.name()),
            at(line.measured()),
            LEFT + LONGEST + 10,
            y + 11,
            line.measured(),
        );
        if let Some(Budget::AtLeast(edge) | Budget::AtMost(edge)) = line.budget() {
            let x = LEFT as f64 + at(edge);
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{}\" stroke=\"#000\" stroke-width=\"2\"/>",
                y - 2,
                y + 16
            );
        }
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{one}\" x2=\"{one}\" y1=\"{}\" y2=\"{}\" stroke=\"#999\" stroke-dasharray=\"4\"/>\n</svg>",
        ROW + 10,
        height - ROW
    );
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::report::Unit;
    use super::*;

    #[test]
    fn every_line_has_its_bar_and_its_name_is_escaped() {
        let lines = [
            Line::new("a < b & c", 0.5, Unit::Ratio).within(Budget::AtLeast(1.0)),
            Line::new("long", 100.0, Unit::Ratio),
            Line::new("not measured", f64::NAN, Unit::Ratio),
        ];
        let svg = svg("title", &lines.iter().collect::<Vec<_>>());
        assert_eq!(svg.matches("<rect x=").count(), 3);
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("#c0392b"));
        assert!(svg.contains(&format!("width=\"{LONGEST}\"")));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}
