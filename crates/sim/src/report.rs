//! Pages about one or several runs of a workload: self-contained HTML with plots as SVG, which need no network.

use crate::metrics::{Against, Gantt, GanttStage, Heat, JobResult, Outcome};
use crate::statistics::{mean, percentile, sorted};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::{self, Write};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot = Result<(), Box<dyn std::error::Error>>;

const WIDTH: u32 = 880;
const HEIGHT: u32 = 300;
/// Colours that most colour-blind people can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(148, 148, 148),
];

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
    h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-variant-numeric:\
    tabular-nums}td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child\
    {text-align:left}svg{max-width:100%;height:auto}p.note{color:#555}";

/// A line of a plot: its name and its points.
type Line = (String, Vec<(f64, f64)>);

/// The page. `notes` describe what the workload lacks and how the gaps were filled; `command` is the command that made
/// the runs.
///
/// # Errors
/// If a plot cannot be drawn, which would be a bug.
pub fn html(title: &str, command: &str, notes: &[String], runs: &[Outcome]) -> Result<String, String> {
    let mut page = String::new();
    write_page(&mut page, title, command, notes, runs).map_err(|error| error.to_string())?;
    Ok(page)
}

fn write_page(page: &mut String, title: &str, command: &str, notes: &[String], runs: &[Outcome]) -> Plot {
    start_page(page, &escape(title), command)?;
    table(page, runs)?;
    for note in notes {
        write!(page, "<p class=\"note\">{}</p>", escape(note))?;
    }
    runs.iter().try_for_each(|run| altruism(page, run))?;
    section(page, "Job completion: share of jobs that took at most x seconds", HEIGHT, &|area| {
        lines(area, "seconds", "share of jobs", &completion_curves(runs))
    })?;
    section(page, "Task wait: share of tasks that waited at most x seconds", HEIGHT, &|area| {
        lines(area, "seconds", "share of tasks", &wait_curves(runs))
    })?;
    section(page, "CPU in use over time", HEIGHT, &|area| {
        lines(area, "seconds", "share of the CPUs", &cpu_lines(runs))
    })?;
    section(page, "Fairness over time (Jain's index in windows of 60 s)", HEIGHT, &|area| {
        lines(area, "seconds", "index", &jain_lines(runs))
    })?;
    for run in runs {
        let name = escape(&run.results.preset);
        let heading = format!("Nodes over time under {name}: darker is busier");
        section(page, &heading, HEIGHT, &|area| heat(area, &run.heat))?;
        if let Some(gantt) = run.gantt.as_ref().filter(|gantt| gantt.stages.len() > 1) {
            let heading = format!("The stages of {} under {name}", escape(&gantt.job));
            section(page, &heading, height_of_bars(gantt), &|area| bars(area, gantt))?;
        }
    }
    Ok(page.write_str("</html>\n")?)
}

// ---- pages about figures of papers --------------------------------------------------------------------------------

/// The distribution of values, drawn as a box with whiskers.
#[derive(Clone, PartialEq, Debug)]
pub struct Spread {
    pub name: String,
    /// The percentiles 5, 25, 50, 75 and 95.
    pub percentiles: [f64; 5],
    pub mean: f64,
}

impl Spread {
    pub fn of(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Spread {
        let values = sorted(values);
        let percentiles = [5, 25, 50, 75, 95].map(|percent| percentile(&values, percent));
        Spread { name: name.into(), percentiles, mean: mean(&values) }
    }
}

/// A plot of a page.
pub enum Figure {
    /// Boxes beside each other: the heading, the name of the values, the boxes.
    Boxes(String, String, Vec<Spread>),
    /// Cumulative distributions: the heading, the name of the values, the values by name.
    Distributions(String, String, Vec<(String, Vec<f64>)>),
    /// Shares or counts over seconds: the heading, the name of the values, the points by name.
    OverTime(String, String, Vec<(String, Vec<(f64, f64)>)>),
}

/// A page with a table and plots. `notes` are below the table.
///
/// # Errors
/// If a plot cannot be drawn, which would be a bug.
pub fn figure_html(
    title: &str,
    command: &str,
    heads: &[&str],
    rows: &[Vec<String>],
    notes: &[String],
    figures: &[Figure],
) -> Result<String, String> {
    let mut page = String::new();
    write_figure_page(&mut page, (title, command), (heads, rows), notes, figures).map_err(|error| error.to_string())?;
    Ok(page)
}

fn write_figure_page(
    page: &mut String,
    (title, command): (&str, &str),
    (heads, rows): (&[&str], &[Vec<String>]),
    notes: &[String],
    figures: &[Figure],
) -> Plot {
    start_page(page, &escape(title), command)?;
    page.write_str("<table><tr>")?;
    heads.iter().try_for_each(|head| write!(page, "<th>{}</th>", escape(head)))?;
    for row in rows {
        page.write_str("</tr><tr>")?;
        row.iter().try_for_each(|cell| write!(page, "<td>{}</td>", escape(cell)))?;
    }
    page.write_str("</tr></table>")?;
    for note in notes {
        write!(page, "<p class=\"note\">{}</p>", escape(note))?;
    }
    for figure in figures {
        match figure {
            Figure::Boxes(heading, values, spreads) => {
                section(page, &escape(heading), HEIGHT, &|area| boxes(area, values, spreads))?;
            }
            Figure::Distributions(heading, values, samples) => {
                let curves: Vec<Line> =
                    samples.iter().map(|(name, values)| (name.clone(), distribution(values.clone()))).collect();
                section(page, &escape(heading), HEIGHT, &|area| lines(area, values, "share", &curves))?;
            }
            Figure::OverTime(heading, values, courses) => {
                section(page, &escape(heading), HEIGHT, &|area| lines(area, "seconds", values, courses))?;
            }
        }
    }
    Ok(page.write_str("</html>\n")?)
}

fn start_page(page: &mut String, title: &str, command: &str) -> fmt::Result {
    write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>"
    )?;
    write!(page, "<h1>{title}</h1><p><code>{}</code></p>", escape(command))
}

fn table(page: &mut String, runs: &[Outcome]) -> fmt::Result {
    let heads = [
        "preset",
        "JCT mean, s",
        "p50",
        "p95",
        "wait mean, s",
        "p95",
        "makespan, s",
        "Jain",
        "CPU",
        "memory",
        "events",
        "wall, s",
    ];
    page.write_str("<table><tr>")?;
    heads.iter().try_for_each(|head| write!(page, "<th>{head}</th>"))?;
    for run in runs {
        let results = &run.results;
        write!(page, "</tr><tr><td>{}</td>", escape(&results.preset))?;
        let seconds = [
            results.jct_s.mean,
            results.jct_s.p50,
            results.jct_s.p95,
            results.task_wait_s.mean,
            results.task_wait_s.p95,
            results.makespan_s,
        ];
        seconds.iter().try_for_each(|value| write!(page, "<td>{value:.1}</td>"))?;
        let jain = results.jain.mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.3}"));
        write!(page, "<td>{jain}</td>")?;
        write!(page, "<td>{:.1} %</td>", results.utilization.cpu * 100.0)?;
        write!(page, "<td>{:.1} %</td>", results.utilization.memory * 100.0)?;
        write!(page, "<td>{}</td><td>{:.2}</td>", results.events, results.wall_seconds)?;
    }
    page.write_str("</tr></table>")?;
    let Some(reference) = runs.first().and_then(|run| run.results.reference) else { return Ok(()) };
    write!(
        page,
        "<p>No scheduler beats a makespan of {:.1} s and a mean completion of {:.1} s. A greedy one that knows all run \
         times, on one machine as large as all nodes together, reaches {:.1} s and {:.1} s.</p>",
        reference.critical_path_s.max(reference.work_over_capacity_s),
        reference.srpt_mean_jct_s,
        reference.greedy_makespan_s,
        reference.greedy_mean_jct_s
    )
}

/// What a run's queues gave and received, and the comparisons of the ends of its jobs.
fn altruism(page: &mut String, run: &Outcome) -> Plot {
    let Some(altruism) = &run.results.altruism else { return Ok(()) };
    write!(page, "<h2>Resources that jobs gave and received under {}</h2>", escape(&run.results.preset))?;
    page.write_str("<table><tr><th>queue</th><th>jobs</th><th>gave, CPU-s</th><th>received</th>")?;
    page.write_str("<th>gave, GiB-s of memory</th><th>received</th></tr>")?;
    for queue in &altruism.queues {
        write!(page, "<tr><td>{}</td><td>{}</td>", escape(&queue.queue), queue.jobs)?;
        let sums = [queue.given_cpu_s, queue.received_cpu_s, queue.given_memory_gib_s, queue.received_memory_gib_s];
        sums.iter().try_for_each(|sum| write!(page, "<td>{sum:.1}</td>"))?;
        page.write_str("</tr>")?;
    }
    page.write_str("</table>")?;
    let ways = [
        ("the estimated ends with their shares alone", Some(altruism.against_alone)),
        ("the same run without altruism", altruism.against_selfish),
    ];
    for (what, against) in ways.into_iter().filter_map(|(what, against)| Some((what, against?))) {
        let Against { jobs, earlier, later, jct_s, speedup } = against;
        write!(
            page,
            "<p>Compared with {what}: of {jobs} jobs {earlier} ended earlier and {later} later; the mean \
             completion there is {:.1} s, and a job is {:.2} times as fast in the median.</p>",
            jct_s.mean, speedup.p50
        )?;
    }
    let curves = speedup_curves(run);
    if curves.is_empty() {
        return Ok(());
    }
    section(page, "Completion without altruism over completion with it: share of jobs", HEIGHT, &|area| {
        lines(area, "times as fast", "share of jobs", &curves)
    })
}

fn section(page: &mut String, heading: &str, height: u32, draw: &dyn Fn(&Area<'_>) -> Plot) -> Plot {
    write!(page, "<h2>{heading}</h2>")?;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    Ok(page.write_str(&svg)?)
}

// ---- data of the plots ---------------------------------------------------------------------------------------------

fn completion_curves(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| distribution(run.jobs.iter().filter_map(|job| job.jct_s).collect());
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

/// Empty if there was no run without altruism.
fn speedup_curves(run: &Outcome) -> Vec<Line> {
    let speedup = |job: &JobResult| Some(job.selfish_jct_s? / job.jct_s.filter(|jct| *jct > 0.0)?);
    let speedups: Vec<f64> = run.jobs.iter().filter_map(speedup).collect();
    if speedups.is_empty() { Vec::new() } else { vec![(run.results.preset.clone(), distribution(speedups))] }
}

/// Cumulative distribution: each value with the share of the values that are at most as large.
fn distribution(values: Vec<f64>) -> Vec<(f64, f64)> {
    let values = sorted(values);
    let count = values.len() as f64;
    // More points could not be distinguished in the plot.
    let step = values.len().div_ceil(400).max(1);
    let points = values.iter().enumerate().filter(|(rank, _)| (rank + 1) % step == 0 || rank + 1 == values.len());
    points.map(|(rank, value)| (*value, (rank + 1) as f64 / count)).collect()
}

fn wait_curves(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| {
        let last = run.wait_curve.len().saturating_sub(1).max(1) as f64;
        run.wait_curve.iter().enumerate().map(|(rank, wait)| (*wait, rank as f64 / last)).collect()
    };
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

fn cpu_lines(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| run.windows.iter().map(|window| (window.begins_s, window.cpu)).collect();
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

fn jain_lines(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| {
        let known = run.windows.iter().filter_map(|window| Some((window.begins_s, window.jain?)));
        known.collect()
    };
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

// ---- drawing -------------------------------------------------------------------------------------------------------

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Pixels between dashes.
const GAP: u32 = 3;

/// Length of a line's dashes; `None` for a solid line. When the colours are used up, the next lines are dashed, then
/// dotted.
fn dash(number: usize) -> Option<u32> {
    [None, Some(9), Some(2)][number / COLOURS.len() % 3]
}

fn lines(area: &Area<'_>, x_name: &str, y_name: &str, lines: &[Line]) -> Plot {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let longest = points().map(|point| point.0).fold(0.0, f64::max);
    // The axis reaches at least 1, so that shares use the whole range.
    let highest = points().map(|point| point.1).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..longest.max(1e-3), 0.0..1.05 * highest)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc(x_name).y_desc(y_name).draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let (style, dash) = (colour(number).stroke_width(2), dash(number));
        let series = match dash {
            None => chart.draw_series(LineSeries::new(points.iter().copied(), style))?,
            Some(dash) => chart.draw_series(DashedLineSeries::new(points.iter().copied(), dash, GAP, style))?,
        };
        let in_legend = move |(x, y)| DashedPathElement::new([(x, y), (x + 18, y)], dash.unwrap_or(18), GAP, style);
        series.label(name).legend(in_legend);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    Ok(())
}

/// Each box reaches from the 25th to the 75th percentile, with a line at the median. Whiskers reach to the 5th and 95th
/// percentile. The mean is a dot.
fn boxes(area: &Area<'_>, y_name: &str, spreads: &[Spread]) -> Plot {
    let highest = spreads.iter().map(|spread| spread.percentiles[4].max(spread.mean)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(65)
        .build_cartesian_2d(0.0..spreads.len().max(1) as f64, 0.0..(highest * 1.05).max(1e-3))?;
    chart.configure_mesh().light_line_style(TRANSPARENT).disable_x_mesh().x_labels(0).y_desc(y_name).draw()?;
    let bottom = HEIGHT as i32 - 30;
    for (number, spread) in spreads.iter().enumerate() {
        let middle = number as f64 + 0.5;
        let [lowest, low, median, high, highest] = spread.percentiles;
        let colour = colour(number);
        let line = |from, to| PathElement::new([from, to], colour.stroke_width(2));
        chart.draw_series([
            line((middle, lowest), (middle, low)),
            line((middle, high), (middle, highest)),
            line((middle - 0.1, lowest), (middle + 0.1, lowest)),
            line((middle - 0.1, highest), (middle + 0.1, highest)),
            line((middle - 0.2, median), (middle + 0.2, median)),
        ])?;
        chart.draw_series([Rectangle::new([(middle - 0.2, low), (middle + 0.2, high)], colour.stroke_width(2))])?;
        chart.draw_series([Circle::new((middle, spread.mean), 4, colour.filled())])?;
        let (x, _) = chart.plotting_area().map_coordinate(&(middle, 0.0));
        area.draw(&Text::new(spread.name.clone(), (x, bottom), text().pos(Pos::new(HPos::Center, VPos::Center))))?;
    }
    Ok(())
}

fn heat(area: &Area<'_>, heat: &Heat) -> Plot {
    /// More columns could not be distinguished.
    const COLUMNS: usize = 200;
    let (area, right) = area.split_horizontally(WIDTH - 100);
    scale(&right)?;
    let windows = heat.rows.iter().map(Vec::len).max().unwrap_or(0);
    let together = windows.div_ceil(COLUMNS).max(1);
    let columns = windows.div_ceil(together);
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..windows.max(1) as f64, 0.0..heat.rows.len().max(1) as f64)?;
    let nodes_in_row = heat.nodes_in_row as f64;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("minutes")
        .y_desc("node")
        .y_label_formatter(&|row| match row.fract() == 0.0 {
            true => format!("{:.0}", row * nodes_in_row),
            false => String::new(),
        })
        .draw()?;
    let cells = heat.rows.iter().enumerate().flat_map(|(row, means)| {
        (0..columns).filter_map(move |column| {
            let part = means.get(column * together..((column + 1) * together).min(means.len()))?;
            let busy = f64::from(part.iter().sum::<f32>()) / part.len().max(1) as f64;
            let (left, right) = ((column * together) as f64, ((column + 1) * together).min(means.len()) as f64);
            // Idle cells are not drawn.
            (busy > 0.004).then(|| Rectangle::new([(left, row as f64), (right, row as f64 + 1.0)], shade(busy)))
        })
    });
    chart.draw_series(cells)?;
    Ok(())
}

/// The style of a cell of the heat map.
fn shade(busy: f64) -> ShapeStyle {
    COLOURS[0].mix(busy.clamp(0.0, 1.0)).filled()
}

/// The legend of the shades of a heat map.
fn scale(area: &Area<'_>) -> Plot {
    const STEPS: i32 = 20;
    let (left, bottom, step) = (10, HEIGHT as i32 - 50, 10);
    area.draw(&Text::new("CPU in use", (left, bottom - STEPS * step - 20), text()))?;
    for number in 0..STEPS {
        let corners = [(left, bottom - number * step), (left + 18, bottom - (number + 1) * step)];
        area.draw(&Rectangle::new(corners, shade((f64::from(number) + 0.5) / f64::from(STEPS))))?;
    }
    area.draw(&Rectangle::new([(left, bottom), (left + 18, bottom - STEPS * step)], BLACK.mix(0.3)))?;
    for percent in [0, 50, 100] {
        let at = (left + 24, bottom - STEPS * step * percent / 100);
        area.draw(&Text::new(format!("{percent} %"), at, text().pos(Pos::new(HPos::Left, VPos::Center))))?;
    }
    Ok(())
}

fn text() -> TextStyle<'static> {
    TextStyle::from(("sans-serif", 12).into_font())
}

/// Height of a stage in a Gantt chart of up to [`BARS`] stages, in pixels.
const BAR: u32 = 20;

/// A chart with more stages is as high as one with this number, and only some stages get a name.
const BARS: u32 = 60;

fn height_of_bars(gantt: &Gantt) -> u32 {
    70 + BAR * u32::try_from(gantt.stages.len()).unwrap_or(BARS).min(BARS)
}

/// The stages from top to bottom, each with its name.
fn bars(area: &Area<'_>, gantt: &Gantt) -> Plot {
    let starts = gantt.stages.iter().map(|stage| stage.begins_s).fold(f64::INFINITY, f64::min);
    let ends = gantt.stages.iter().map(|stage| stage.ends_s).fold(starts, f64::max);
    let count = gantt.stages.len() as f64;
    let labels: Vec<String> =
        gantt.stages.iter().map(|stage| format!("{} ({})", shortened(&stage.name), stage.tasks)).collect();
    let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(35 + 7 * longest as u32)
        .build_cartesian_2d(0.0..(ends - starts).max(1e-3), 0.0..count)?;
    let x_name = "seconds since its first task";
    chart.configure_mesh().disable_mesh().x_desc(x_name).y_desc("stage (tasks)").y_labels(0).draw()?;
    let bar = |(number, stage): (usize, &GanttStage)| {
        let top = count - number as f64;
        let corners = [(stage.begins_s - starts, top - 0.9), (stage.ends_s - starts, top - 0.1)];
        Rectangle::new(corners, colour(number).mix(0.8).filled())
    };
    chart.draw_series(gantt.stages.iter().enumerate().map(bar))?;
    let every = labels.len().div_ceil(BARS as usize).max(1);
    for (number, label) in labels.into_iter().enumerate().step_by(every) {
        let (left, middle) = chart.plotting_area().map_coordinate(&(0.0, count - number as f64 - 0.5));
        area.draw(&Text::new(label, (left - 6, middle), text().pos(Pos::new(HPos::Right, VPos::Center))))?;
    }
    Ok(())
}

fn shortened(name: &str) -> String {
    const MOST: usize = 22;
    if name.chars().count() <= MOST { name.to_owned() } else { name.chars().take(MOST - 1).chain(['…']).collect() }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, Simulation};
    use amalgam_core::preset::Preset;
    use amalgam_workload::trace;
    use std::collections::BTreeSet;

    fn runs() -> Vec<Outcome> {
        Preset::all().map(run).collect()
    }

    fn run(preset: Preset) -> Outcome {
        let options = [("jobs", "5"), ("run-time", "exponential:60s")];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let workload = trace::read("synthetic:layered", &options).unwrap();
        let nodes = trace::read_nodes("drawn:5", &[]).unwrap();
        Simulation::new(Settings { preset, ..Settings::default() }, &nodes, &workload).run()
    }

    /// The plots of a page by their headings.
    fn plots(page: &str) -> Vec<(&str, &str)> {
        page.split("<h2>").skip(1).map(|section| section.split_once("</h2>").expect("a heading ends")).collect()
    }

    /// The texts in a plot.
    fn texts(plot: &str) -> Vec<&str> {
        let after_tags = plot.split("<text").skip(1).filter_map(|text| text.split_once('>'));
        after_tags.filter_map(|(_, rest)| Some(rest.split_once("</text>")?.0.trim())).collect()
    }

    #[test]
    fn a_page_has_each_plot_once_with_its_axes_and_lines() {
        let runs = runs();
        let page = html("a <workload>", "amalgam sim run", &["no demands".to_owned()], &runs).unwrap();
        let plots = plots(&page);
        let plot = |heading: &str| {
            let found: Vec<&str> = plots.iter().filter(|(found, _)| *found == heading).map(|(_, plot)| *plot).collect();
            assert_eq!(found.len(), 1, "plots called `{heading}`");
            assert!(found[0].starts_with("<svg") && found[0].contains("</svg>"), "nothing drawn under `{heading}`");
            found[0]
        };
        let of_all = [
            ("Job completion: share of jobs that took at most x seconds", "share of jobs"),
            ("Task wait: share of tasks that waited at most x seconds", "share of tasks"),
            ("CPU in use over time", "share of the CPUs"),
            ("Fairness over time (Jain's index in windows of 60 s)", "index"),
        ];
        for (heading, axis) in of_all {
            let texts = texts(plot(heading));
            assert!(texts.contains(&axis), "{heading}: {texts:?}");
            for run in &runs {
                assert!(texts.contains(&run.results.preset.as_str()), "{heading}, {}: {texts:?}", run.results.preset);
            }
        }
        for run in &runs {
            let preset = &run.results.preset;
            let heat = texts(plot(&format!("Nodes over time under {preset}: darker is busier")));
            for text in ["node", "minutes", "CPU in use", "0 %", "50 %", "100 %"] {
                assert!(heat.contains(&text), "{preset}, no `{text}`: {heat:?}");
            }
            let gantt = run.gantt.as_ref().unwrap();
            let bars = texts(plot(&format!("The stages of {} under {preset}", gantt.job)));
            for stage in &gantt.stages {
                let label = format!("{} ({})", stage.name, stage.tasks);
                assert!(bars.contains(&label.as_str()), "{preset}, no `{label}`: {bars:?}");
            }
        }
        assert_eq!(plots.len(), of_all.len() + 2 * runs.len() + 1);
        let (heading, exchange) = plots[0];
        assert_eq!(heading, "Resources that jobs gave and received under carbyne");
        assert!(exchange.contains("<td>root.default</td><td>5</td>") && exchange.contains("of 5 jobs"), "{exchange}");
        assert!(page.contains("a &lt;workload&gt;") && page.contains("no demands"));
    }

    #[test]
    fn ends_are_compared_with_those_without_altruism() {
        let mut selfish = Preset::CARBYNE;
        selfish.yielding_mut().unwrap().altruism = 0;
        let mut run_of_carbyne = run(Preset::CARBYNE);
        run_of_carbyne.compare_with_selfish(&run(selfish));
        let page = html("a workload", "amalgam sim run", &[], &[run_of_carbyne]).unwrap();
        assert!(page.contains("<p>Compared with the same run without altruism: of 5 jobs"), "{page}");
        let plot = plots(&page).into_iter().find(|(heading, _)| heading.starts_with("Completion without altruism"));
        assert!(texts(plot.unwrap().1).contains(&"carbyne"));
    }

    #[test]
    fn every_preset_has_a_distinct_line_style() {
        let looks = (0..Preset::all().count()).map(|number| {
            let RGBColor(red, green, blue) = colour(number);
            (red, green, blue, dash(number))
        });
        assert_eq!(looks.collect::<BTreeSet<_>>().len(), Preset::all().count());
    }

    #[test]
    fn stages_are_drawn_from_top_to_bottom_beside_their_names() {
        let stage = |name: &str, begins_s, ends_s| GanttStage { name: name.to_owned(), tasks: 1, begins_s, ends_s };
        let stages = vec![stage("map", 0.0, 10.0), stage("shuffle", 10.0, 20.0), stage("reduce", 20.0, 30.0)];
        let gantt = Gantt { job: "j".to_owned(), stages };
        let mut page = String::new();
        section(&mut page, "g", height_of_bars(&gantt), &|area| bars(area, &gantt)).unwrap();
        let names = ["map (1)", "shuffle (1)", "reduce (1)"];
        // The y of a name is within its bar.
        let number = |tag: &str, key: &str| -> f64 {
            let value = tag.split_once(&format!(" {key}=\"")).unwrap().1;
            value.split_once('"').unwrap().0.parse().unwrap()
        };
        let tag_of = |name: &str| {
            let text = page.split("<text").find(|text| text.contains(name)).unwrap();
            text.split_once('>').unwrap().0.to_owned()
        };
        let name_at = names.map(|name| number(&tag_of(name), "y"));
        let bars: Vec<&str> = page.split("<rect").skip(1).collect();
        let bar_at: Vec<(f64, f64)> = bars.iter().map(|bar| (number(bar, "y"), number(bar, "height"))).collect();
        assert_eq!(bar_at.len(), 3);
        for (name, (top, height)) in name_at.iter().zip(bar_at) {
            assert!((top..top + height).contains(name), "the name is at {name}, its bar at {top} with height {height}");
        }
        assert!(name_at.is_sorted(), "the first stage is at the top: {name_at:?}");
    }
}
