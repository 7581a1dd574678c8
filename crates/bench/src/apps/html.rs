//! The result as a page: one file, which needs no other and no program.

mod escape;
mod plot;

use std::fmt::Write;

use super::report::{SYNCS, median, range, shown, title};
use super::{AppsReport, Measured};
use escape::escaped;

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; }
small { opacity: .7; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: currentColor; }
.grid { stroke: currentColor; stroke-opacity: .15; }
.one { stroke: currentColor; stroke-opacity: .6; }
.failed { color: #c62828; }
";

impl AppsReport {
    /// The whole page.
    pub fn html(&self) -> String {
        let mut page = String::new();
        page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width\">\n");
        let _ = writeln!(page, "<title>warren bench apps</title>\n<style>\n{STYLE}</style>");
        page.push_str("</head>\n<body>\n<h1>Programs on Warren and on other file systems</h1>\n");
        let _ = writeln!(page, "<p>{}</p>", escaped(&self.setting()));
        list(&mut page, "", "Left out", &self.left_out);
        list(&mut page, " class=\"failed\"", "Failed", &self.failures);
        self.summary(&mut page);
        self.table(&mut page);
        page.push_str(
            "<h2>Times of the rounds</h2>\n<p>A bar is the median, a line from the 25th ",
        );
        page.push_str("to the 75th percentile, a dot one round.</p>\n");
        for measured in &self.workloads {
            let _ = writeln!(page, "<h3>{}</h3>", escaped(&title(measured)));
            page.push_str(&plot::bars(&self.contenders, measured));
        }
        page.push_str("</body>\n</html>\n");
        page
    }

    fn summary(&self, page: &mut String) {
        let dots = plot::ratios(&self.contenders, &self.workloads);
        if dots.is_empty() {
            return;
        }
        page.push_str("<h2>Times the time of ext4</h2>\n");
        page.push_str("<p>Further left is faster. The scale is logarithmic.</p>\n");
        page.push_str(&dots);
    }

    fn table(&self, page: &mut String) {
        page.push_str("<h2>Medians</h2>\n<p>Milliseconds (25th to 75th percentile), then the ");
        page.push_str("ratios to ext4 and to tmpfs.</p>\n<div class=\"scroll\"><table>\n<tr><th>");
        for name in &self.contenders {
            let _ = write!(page, "<th>{}", escaped(name.name()));
        }
        page.push('\n');
        for measured in &self.workloads {
            row(page, measured);
        }
        page.push_str("<tr><th>geometric mean");
        for mean in &self.means {
            let (ext4, tmpfs) = (shown(mean.ratios.to_ext4), shown(mean.ratios.to_tmpfs));
            let _ = write!(page, "<th>{ext4}; {tmpfs}");
        }
        let _ = writeln!(page, "\n</table></div>\n<p>* {}.</p>", escaped(SYNCS));
    }
}

fn row(page: &mut String, measured: &Measured) {
    let _ = write!(page, "<tr><td>{}", escaped(&title(measured)));
    for times in &measured.times {
        let Some(times) = times else {
            page.push_str("<td class=\"failed\">failed");
            continue;
        };
        let (ext4, tmpfs) = (shown(times.ratios.to_ext4), shown(times.ratios.to_tmpfs));
        let (median, range) = (median(times), range(times));
        let _ = write!(page, "<td>{median} <small>({range})</small><br>{ext4}; {tmpfs}");
    }
    page.push('\n');
}

fn list(page: &mut String, class: &str, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(page, "<p{class}>{title}:</p>\n<ul{class}>");
    for line in lines {
        let _ = writeln!(page, "<li>{}", escaped(line));
    }
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;

    #[test]
    fn names_are_escaped() {
        let page = example().html();
        assert!(page.contains("A &lt;processor&gt; &amp; more") && !page.contains("<processor>"));
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = example().html();
        for outside in ["http://", "https://", "<script", "<link", "url(", "@import", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 4, "one of the ratios, three of workloads");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("<td class=\"failed\">failed"));
    }

    #[test]
    fn without_ext4_there_is_no_plot_of_ratios() {
        let mut report = example();
        for times in report.workloads.iter_mut().flat_map(|it| it.times.iter_mut().flatten()) {
            times.ratios.to_ext4 = None;
        }
        assert!(!report.html().contains("Times the time of ext4"));
    }
}
